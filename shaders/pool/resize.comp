// Resamples two axes, between which nothing lies, by tables: for every output element of an axis its taps'
// input elements and weights. Tables are [size][taps]; an input element of -1 asks for the extrapolation
// value. An invocation computes RUN neighbouring elements of a row.
// variant: f32    T=f32
// variant: f16    T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, ROW_TAPS, 2u);
SPEC(2, uint, COL_TAPS, 2u);
SPEC(3, uint, RUN, 1u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer RowTable { ivec2 rows[]; };
layout(set = 0, binding = 2, std430) readonly buffer ColTable { ivec2 cols[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;         // invocations
    uint ow, oh;    // sizes of the output
    int iw, ih;     // sizes of the input
    uint inner;     // elements after the second axis
    float outside;  // the extrapolation value
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint line = p.ow * p.inner;
    uint runs = (line + RUN - 1u) / RUN;
    uint row = i / runs;
    uint at = (i - row * runs) * RUN;
    uint end = min(at + RUN, line);
    uint outer = row / p.oh;
    uint first_tap = (row - outer * p.oh) * ROW_TAPS;
    int first = int(outer) * p.ih;
    uint col = at / p.inner;
    uint lane = at - col * p.inner;
    bool row_outside = rows[first_tap].x < 0;
    for (; at < end; ++at) {
        float sum = 0.0;
        if (row_outside || cols[col * COL_TAPS].x < 0) {
            sum = p.outside;
        } else {
            for (uint r = 0u; r < ROW_TAPS; ++r) {
                ivec2 tap = rows[first_tap + r];
                int base = (first + tap.x) * p.iw;
                float part = 0.0;
                for (uint c = 0u; c < COL_TAPS; ++c) {
                    ivec2 e = cols[col * COL_TAPS + c];
                    part += intBitsToFloat(e.y) * float(x[(base + e.x) * int(p.inner) + int(lane)]);
                }
                sum += intBitsToFloat(tap.y) * part;
            }
        }
        y[row * line + at] = T(sum);
        ++lane;
        col += lane == p.inner ? 1u : 0u;
        lane = lane == p.inner ? 0u : lane;
    }
}
