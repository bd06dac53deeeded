// Picks elements of two axes, between which nothing lies, by tables of input elements; -1 asks for the
// extrapolation value. An invocation picks RUN neighbouring elements of a row.
// variant: b8    T=b8  EXT_INT8
// variant: b16   T=b16 EXT_INT16
// variant: b32   T=b32
// variant: b64   T=b64 WIDE
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, RUN, 1u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer RowTable { int rows[]; };
layout(set = 0, binding = 2, std430) readonly buffer ColTable { int cols[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;             // invocations
    uint ow, oh;        // sizes of the output
    int iw, ih;         // sizes of the input
    uint inner;         // elements after the second axis
    uint outside_low;   // the extrapolation value's bits
    uint outside_high;
} p;

#ifdef WIDE
#define OUTSIDE uvec2(p.outside_low, p.outside_high)
#else
#define OUTSIDE T(p.outside_low)
#endif

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
    int from = rows[row - outer * p.oh];
    int base = (int(outer) * p.ih + from) * p.iw;
    uint col = at / p.inner;
    uint lane = at - col * p.inner;
    for (; at < end; ++at) {
        int e = cols[col];
        bool outside = from < 0 || e < 0;
        T v = x[outside ? 0 : (base + e) * int(p.inner) + int(lane)];
        y[row * line + at] = outside ? OUTSIDE : v;
        ++lane;
        col += lane == p.inner ? 1u : 0u;
        lane = lane == p.inner ? 0u : lane;
    }
}
