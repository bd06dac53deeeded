// y[place that index i names] = x[i]; y holds zeros before. Indices out of range are left out.
// variant: b16  T=b16  EXT_INT16=1
// variant: b32  T=b32
// variant: b64  T=b64
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "nest.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, int, RANK, 6);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Index { ivec2 index[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

// Sizes of the tensor that the indices refer to, and strides of the output.
layout(push_constant) uniform Params
{
    uint sizes[6];
    int strides[6];
    uint n;
    uint places;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int at = index[i].x;
    at = at < 0 ? at + int(p.places) : at;
    if (at < 0 || at >= int(p.places)) {
        return;
    }
    int to = 0;
#define ADD(d, c) to += c * p.strides[d];
    FOR_EACH_COORDINATE(RANK, uint(at), ADD)
    y[to] = x[i];
}
