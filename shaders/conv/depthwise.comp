// Convolution of one input channel per group: an invocation computes ROWS x PX neighbouring elements of one
// output channel. Weights are packed as [channel][kh][kw rounded up to fours].
// variant: tex    T=f32 VEC=vec4 TEXELS
// variant: tex4   T=f32 VEC=vec4 TEXELS OUT4
// variant: buf    T=f32 VEC=vec4
// variant: buf4   T=f32 VEC=vec4 OUT4
// variant: half   T=f16 VEC=f16vec4 EXT_STORAGE16 TEXELS HALVES
// variant: half4  T=f16 VEC=f16vec4 EXT_STORAGE16 TEXELS HALVES OUT4
// variant: f16    T=f16 VEC=f16vec4 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 8);
SPEC(1, uint, PX, 8u);
SPEC(2, uint, ROWS, 2u);
SPEC(3, uint, KW, 3u);
SPEC(4, uint, KH, 3u);
SPEC(5, uint, SX, 1u);
SPEC(6, uint, SY, 1u);
SPEC(7, uint, DX, 1u);
SPEC(8, uint, DY, 1u);
SPEC(9, uint, SHIFT, 4u);         // input elements begin SHIFT elements into a texel; 4: not known
SPEC(10, uint, BIASED, 0u);
SPEC(11, uint, ACTIVATION, 0u);

#include "texels.glsl"
layout(set = 0, binding = 2, std430) readonly buffer B { T bias[]; };
#include "channel.glsl"
#define SUMMAND 4
#include "output.glsl"

layout(push_constant) uniform Params
{
    uint n;             // invocations
    OUTPUT_2D
    uint channels;      // output channels
    uint multiplier;    // output channels of one input channel
    PADDED_PLANE
    int last;           // the last element or texel of x
    float act_a, act_b;
} p;

#include "row_span.glsl"

const uint W_COUNT = (KW + 3u) / 4u;
// Input rows that the output rows read.
const uint INPUT_ROWS = (ROWS - 1u) * SY + (KH - 1u) * DY + 1u;

float sums[ROWS * PX];

void load(int row, int first, bool inside)
{
#ifdef TEXELS
    load_span(row + first);
    [[unroll]] for (uint i = 0u; i < SPAN; ++i) {
        values[i] = inside && uint(first + int(i)) < uint(p.iw) ? values[i] : 0.0;
    }
#else
    [[unroll]] for (uint i = 0u; i < SPAN; ++i) {
        int at = first + int(i);
        float v = float(x[clamp(row + at, 0, p.last)]);
        values[i] = inside && uint(at) < uint(p.iw) ? v : 0.0;
    }
#endif
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint tiles = (p.ow + PX - 1u) / PX;
    uint ow = (i % tiles) * PX;
    i /= tiles;
    uint bands = (p.oh + ROWS - 1u) / ROWS;
    uint oh = (i % bands) * ROWS;
    i /= bands;
    uint channel = i % p.channels;
    uint image = i / p.channels;

    float b = bias_of(channel);
    float slope = slope_of(channel, p.channels, p.act_a);
    [[unroll]] for (uint k = 0u; k < ROWS * PX; ++k) {
        sums[k] = b;
    }
    int first_w = int(ow * SX) - p.pw;
    int first_h = int(oh * SY) - p.ph;
    int plane = int(image * (p.channels / p.multiplier) + channel / p.multiplier) * p.ih * p.iw;
    int w_first = int(channel * KH * W_COUNT);
    [[unroll]] for (uint r = 0u; r < INPUT_ROWS; ++r) {
        int v = first_h + int(r);
        load(plane + v * p.iw, first_w, uint(v) < uint(p.ih));
        [[unroll]] for (uint o = 0u; o < ROWS; ++o) {
            // The tap with which output row o reads input row r, where there is one.
            uint tap = (r - o * SY) / DY;
            if (r >= o * SY && tap * DY == r - o * SY && tap < KH) {
                [[unroll]] for (uint q = 0u; q < W_COUNT; ++q) {
                    vec4 t = W_TEXEL(w_first + int(tap * W_COUNT + q));
                    [[unroll]] for (uint k = 0u; k < 4u; ++k) {
                        if (4u * q + k < KW) {
                            [[unroll]] for (uint j = 0u; j < PX; ++j) {
                                float e = values[j * SX + (4u * q + k) * DX];
                                sums[o * PX + j] = fma(t[k], e, sums[o * PX + j]);
                            }
                        }
                    }
                }
            }
        }
    }

    [[unroll]] for (uint o = 0u; o < ROWS; ++o) {
        if (oh + o < p.oh) {
            uint at = ((image * p.channels + channel) * p.oh + oh + o) * p.ow + ow;
#ifdef OUT4
            [[unroll]] for (uint j = 0u; j < PX; j += 4u) {
                if (ow + j < p.ow) {
                    vec4 v = vec4(sums[o * PX + j], sums[o * PX + j + 1u], sums[o * PX + j + 2u],
                                  sums[o * PX + j + 3u]);
                    uint to = (at + j) / 4u;
                    y[to] = VEC(activate4(plus_summand(v, to), ACTIVATION, slope, p.act_b));
                }
            }
#else
            [[unroll]] for (uint j = 0u; j < PX; ++j) {
                if (ow + j < p.ow) {
                    float v = plus_summand(sums[o * PX + j], at + j);
                    y[at + j] = T(activate(v, ACTIVATION, slope, p.act_b));
                }
            }
#endif
        }
    }
}
