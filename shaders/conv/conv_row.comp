// Convolution, plain NCHW in and out: an invocation computes 8 output channels of PX neighbouring elements
// of one row. Weights are packed as [group][channel / 8][ic][kd][kh][kw][8], zeros after the last channel; those of
// one tap are read as models have them where rows of input channels are whole texels: PLAIN.
// variant: tex    T=f32 VEC=vec4 TEXELS
// variant: tex4   T=f32 VEC=vec4 TEXELS OUT4
// variant: buf    T=f32 VEC=vec4
// variant: buf4   T=f32 VEC=vec4 OUT4
// variant: half   T=f16 VEC=f16vec4 EXT_STORAGE16 TEXELS HALVES
// variant: half4  T=f16 VEC=f16vec4 EXT_STORAGE16 TEXELS HALVES OUT4
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 8);
SPEC(1, uint, PX, 8u);            // elements of a row
SPEC(2, uint, KW, 3u);            // taps of a row that are unrolled
SPEC(3, uint, SX, 1u);            // stride along the row
SPEC(4, uint, DX, 1u);            // dilation along the row
SPEC(5, uint, SHIFT, 4u);         // input elements begin SHIFT elements into a texel; 4: not known
SPEC(6, uint, SCATTERED, 0u);     // whether every input element is fetched by itself (KW is 1 then)
SPEC(7, uint, BIASED, 0u);
SPEC(8, uint, ACTIVATION, 0u);
SPEC(9, uint, STEPS, 1u);         // steps along rows that are unrolled
SPEC(10, uint, PLAIN, 0u);        // weights are [group][channel][ic]; STEPS is 4

#include "texels.glsl"
layout(set = 0, binding = 2, std430) readonly buffer B { T bias[]; };
#include "channel.glsl"
#define SUMMAND 4
#include "output.glsl"

layout(push_constant) uniform Params
{
    uint n;             // invocations
    OUTPUT_3D
    uint oc, groups;    // output channels of a group, groups
    uint ic;            // input channels of a group
    ROW_WINDOW_3D       // kx steps of KW taps along the row
    uint yc, yd, yh, yw;  // strides in the output of channels, planes, rows, elements
    uint y_first;       // where the output begins
    int last;           // the last element or texel of x
    float act_a, act_b;
} p;

#include "row_span.glsl"

vec4 sums[2u * PX];
vec4 quads[8];

// Reads the SPAN elements from `first` on, of a row that begins at `row`; zeros outside the row, and
// everywhere unless `inside`.
void load(int row, int first, bool inside)
{
#ifdef TEXELS
    if (SCATTERED != 0u) {
        [[unroll]] for (uint i = 0u; i < PX; ++i) {
            int at = first + int(i * SX);
            int e = row + at;
            vec4 t = X_TEXEL(clamp(e >> 2, 0, p.last));
            float v = (e & 2) != 0 ? ((e & 1) != 0 ? t.w : t.z) : ((e & 1) != 0 ? t.y : t.x);
            values[i] = inside && uint(at) < uint(p.iw) ? v : 0.0;
        }
        return;
    }
    load_span(row + first);
    [[unroll]] for (uint i = 0u; i < SPAN; ++i) {
        values[i] = inside && uint(first + int(i)) < uint(p.iw) ? values[i] : 0.0;
    }
#else
    if (SCATTERED != 0u) {
        [[unroll]] for (uint i = 0u; i < PX; ++i) {
            int at = first + int(i * SX);
            float v = x[clamp(row + at, 0, p.last)];
            values[i] = inside && uint(at) < uint(p.iw) ? v : 0.0;
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < SPAN; ++i) {
        int at = first + int(i);
        float v = x[clamp(row + at, 0, p.last)];
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
    uint oh = i % p.oh;
    i /= p.oh;
    uint od = i % p.od;
    i /= p.od;
    uint tile_count = (p.oc + 7u) / 8u;
    uint tile = i % tile_count;
    i /= tile_count;
    uint group = i % p.groups;
    uint image = i / p.groups;

    [[unroll]] for (uint k = 0u; k < 2u * PX; ++k) {
        sums[k] = vec4(0.0);
    }
    int first_w = int(ow * SX) - p.pw;
    int first_h = int(oh) * p.sh - p.ph;
    int first_d = int(od) * p.sd - p.pd;
    // One loop over channels, planes, rows and parts of rows: loops in loops would move the sums at every
    // level. Windows that lie outside are computed with zeros.
    int steps = int(p.ic * p.kd * p.kh * p.kx);
    int w_at = int(group * tile_count + tile) * steps * int(2u * KW);
    int w_last = w_at + (steps - 1) * int(2u * KW);
    int plain_at[8];
    if (PLAIN != 0u) {
        [[unroll]] for (uint c = 0u; c < 8u; ++c) {
            // Channels after the last are computed as the last, and not stored.
            plain_at[c] = int((group * p.oc + min(tile * 8u + c, p.oc - 1u)) * p.ic / 4u);
        }
    }
    int plane = p.id * p.ih * p.iw;
    int x_channel = int((image * p.groups + group) * p.ic) * plane;
    uint kx = 0u;
    uint kh = 0u;
    uint kd = 0u;
    for (int s = 0; s < steps; s += int(STEPS)) {
        if (PLAIN != 0u) {
            [[unroll]] for (uint c = 0u; c < 8u; ++c) {
                quads[c] = W_TEXEL(plain_at[c]);
                ++plain_at[c];
            }
        }
        [[unroll]] for (uint u = 0u; u < STEPS; ++u) {
            int z = first_d + int(kd) * p.dd;
            int v = first_h + int(kh) * p.dh;
            bool inside = uint(z) < uint(p.id) && uint(v) < uint(p.ih) && s + int(u) < steps;
            load(x_channel + (z * p.ih + v) * p.iw, first_w + int(kx * KW * DX), inside);
            // After the last step the sums take zeros.
            int w_step = min(w_at, w_last);
            [[unroll]] for (uint k = 0u; k < KW; ++k) {
                vec4 a;
                vec4 b;
                if (PLAIN != 0u) {
                    a = vec4(quads[0][u], quads[1][u], quads[2][u], quads[3][u]);
                    b = vec4(quads[4][u], quads[5][u], quads[6][u], quads[7][u]);
                } else {
                    a = W_TEXEL(w_step + int(2u * k));
                    b = W_TEXEL(w_step + int(2u * k) + 1);
                }
                [[unroll]] for (uint j = 0u; j < PX; ++j) {
                    float e = values[SCATTERED != 0u ? j : j * SX + k * DX];
                    sums[2u * j] = fma(a, vec4(e), sums[2u * j]);
                    sums[2u * j + 1u] = fma(b, vec4(e), sums[2u * j + 1u]);
                }
            }
            w_at += int(2u * KW);
            ++kx;
            bool next_row = kx == p.kx;
            kx = next_row ? 0u : kx;
            kh += next_row ? 1u : 0u;
            bool next_plane = kh == p.kh;
            kh = next_plane ? 0u : kh;
            kd += next_plane ? 1u : 0u;
            bool next_channel = kd == p.kd;
            kd = next_channel ? 0u : kd;
            x_channel += next_channel ? plane : 0;
        }
    }

    uint channel = group * p.oc + tile * 8u;
    uint count = min(8u, p.oc - tile * 8u);
    uint at = p.y_first + (image * p.groups * p.oc + channel) * p.yc + od * p.yd + oh * p.yh + ow * p.yw;
    [[unroll]] for (uint half_tile = 0u; half_tile < 2u; ++half_tile) {
        [[unroll]] for (uint k = 0u; k < 4u; ++k) {
            uint c = 4u * half_tile + k;
            if (c < count) {
                float b = bias_of(channel + c);
                float slope = slope_of(channel + c, p.groups * p.oc, p.act_a);
#ifdef OUT4
                [[unroll]] for (uint j = 0u; j < PX; j += 4u) {
                    if (ow + j < p.ow) {
                        vec4 v = vec4(sums[2u * j + half_tile][k], sums[2u * j + 2u + half_tile][k],
                                      sums[2u * j + 4u + half_tile][k], sums[2u * j + 6u + half_tile][k]);
                        uint to = (at + c * p.yc + j) / 4u;
                        y[to] = VEC(activate4(plus_summand(v + b, to), ACTIVATION, slope, p.act_b));
                    }
                }
#else
                [[unroll]] for (uint j = 0u; j < PX; ++j) {
                    if (ow + j < p.ow) {
                        uint to = at + c * p.yc + j * p.yw;
                        float v = plus_summand(sums[2u * j + half_tile][k] + b, to);
                        y[to] = T(activate(v, ACTIVATION, slope, p.act_b));
                    }
                }
#endif
            }
        }
    }
}
