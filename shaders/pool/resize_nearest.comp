// Picks elements of two axes, between which nothing lies, by tables of input elements; -1 asks for the
// extrapolation value.
// variant: b8    T=uint8_t  EXT_INT8
// variant: b16   T=uint16_t EXT_INT16
// variant: b32   T=uint
// variant: b64   T=uvec2 WIDE
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer RowTable { int rows[]; };
layout(set = 0, binding = 2, std430) readonly buffer ColTable { int cols[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint ow, oh;        // sizes of the output
    int iw, ih;         // sizes of the input
    uint inner;         // elements behind the second axis
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
    uint at = i / p.inner;
    int lane = int(i - at * p.inner);
    int col = cols[at % p.ow];
    at /= p.ow;
    int row = rows[at % p.oh];
    int first = int(at / p.oh) * p.ih;
    if (row < 0 || col < 0) {
        y[i] = OUTSIDE;
        return;
    }
    y[i] = x[((first + row) * p.iw + col) * int(p.inner) + lane];
}
