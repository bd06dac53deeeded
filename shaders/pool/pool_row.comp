// MaxPool and AveragePool over two dimensions: an invocation computes PX neighbouring elements of a row from
// whole texels.
// variant: tex    T=f32 VEC=vec4
// variant: tex4   T=f32 VEC=vec4 OUT4
// variant: half   T=f16 VEC=f16vec4 EXT_STORAGE16 HALVES
// variant: half4  T=f16 VEC=f16vec4 EXT_STORAGE16 HALVES OUT4
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 8);
SPEC(1, uint, PX, 8u);
SPEC(2, uint, KW, 3u);
SPEC(3, uint, SX, 1u);
SPEC(4, uint, DX, 1u);
SPEC(5, uint, SHIFT, 4u);         // input elements begin SHIFT elements into a texel; 4: not known
SPEC(6, uint, MEAN, 0u);          // the mean, else the maximum
SPEC(7, uint, INCLUDE_PAD, 0u);

#ifdef HALVES
layout(set = 0, binding = 0, rgba16f) uniform readonly imageBuffer x;
#define X_TEXEL(i) imageLoad(x, i)
#else
layout(set = 0, binding = 0) uniform samplerBuffer x;
#define X_TEXEL(i) texelFetch(x, i)
#endif
#ifdef OUT4
layout(set = 0, binding = 1, std430) writeonly buffer Y { VEC y[]; };
#else
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };
#endif

layout(push_constant) uniform Params
{
    uint n;             // invocations
    OUTPUT_2D
    WINDOW_2D(int)      // along rows, constants have the same numbers
    WINDOW_ENDS_2D
    int last;           // the last texel of x
} p;

#include "row_span.glsl"

void load(int row, int first, float outside)
{
    load_span(row + first);
    [[unroll]] for (uint i = 0u; i < SPAN; ++i) {
        values[i] = uint(first + int(i)) < uint(p.iw) ? values[i] : outside;
    }
}

// How many of `taps` places from `start` on lie from `low` to before `high`.
int counted(int start, int step, int taps, int low, int high)
{
    int first = start >= low ? 0 : (low - start + step - 1) / step;
    int end = start >= high ? 0 : min(taps, (high - start + step - 1) / step);
    return max(end - first, 0);
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
    int plane = int(i / p.oh) * p.ih * p.iw;
    int first_w = int(ow * SX) - p.pw;
    int first_h = int(oh) * p.sh - p.ph;
    float neutral = MEAN != 0u ? 0.0 : uintBitsToFloat(0xff800000u);
    float results[PX];
    [[unroll]] for (uint j = 0u; j < PX; ++j) {
        results[j] = neutral;
    }
    for (int k = 0; k < p.kh; ++k) {
        int v = first_h + k * p.dh;
        if (uint(v) >= uint(p.ih)) {
            continue;
        }
        load(plane + v * p.iw, first_w, neutral);
        [[unroll]] for (uint t = 0u; t < KW; ++t) {
            [[unroll]] for (uint j = 0u; j < PX; ++j) {
                float e = values[j * SX + t * DX];
                results[j] = MEAN != 0u ? results[j] + e : (e > results[j] ? e : results[j]);
            }
        }
    }
    if (MEAN != 0u) {
        bool pad = INCLUDE_PAD != 0u;
        int rows = counted(first_h, p.dh, p.kh, pad ? -p.ph : 0, pad ? p.ih + p.qh : p.ih);
        [[unroll]] for (uint j = 0u; j < PX; ++j) {
            int start = first_w + int(j * SX);
            int count = rows * counted(start, int(DX), int(KW), pad ? -p.pw : 0, pad ? p.iw + p.qw : p.iw);
            results[j] = count > 0 ? results[j] / float(count) : 0.0;
        }
    }
    uint at = i * p.ow + ow;
#ifdef OUT4
    [[unroll]] for (uint j = 0u; j < PX; j += 4u) {
        if (ow + j < p.ow) {
            y[(at + j) / 4u] = VEC(vec4(results[j], results[j + 1u], results[j + 2u], results[j + 3u]));
        }
    }
#else
    [[unroll]] for (uint j = 0u; j < PX; ++j) {
        if (ow + j < p.ow) {
            y[at + j] = T(results[j]);
        }
    }
#endif
}
