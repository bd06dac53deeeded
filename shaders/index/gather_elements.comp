// y[i] = x[line(i) + index[i] * step] over elements of any size; an index out of range reads the nearest element.
// variant: b8    T=b8   EXT_INT8=1
// variant: b16   T=b16  EXT_INT16=1
// variant: b32   T=b32
// variant: b64   T=b64
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "nest.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, int, RANK, 6);
// Words of one index: 2 for int64, of which the lower one counts.
SPEC(2, uint, INDEX_WORDS, 2u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Index { int index[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint sizes[6];
    int strides[6];
    uint n;
    uint size;      // of the axis
    uint step;      // elements from one position on it to the next
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int line = 0;
#define ADD(d, c) line += c * p.strides[d];
    FOR_EACH_COORDINATE(RANK, i, ADD)
    int at = index[i * INDEX_WORDS];
    at = clamp(at < 0 ? at + int(p.size) : at, 0, int(p.size) - 1);
    y[i] = x[uint(line) + uint(at) * p.step];
}
