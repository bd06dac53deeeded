// y[o, k, i] = x[o, index[k], i] over elements of any size; an index out of range reads the nearest element.
// variant: b8    T=b8   EXT_INT8=1
// variant: b16   T=b16  EXT_INT16=1
// variant: b32   T=b32
// variant: b64   T=b64
// variant: b128  T=b128
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
// Words of one index: 2 for int64, of which the lower one counts.
SPEC(1, uint, INDEX_WORDS, 2u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Index { int index[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint inner;
    uint indices;
    uint size;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint inner = i % p.inner;
    uint rest = i / p.inner;
    uint k = rest % p.indices;
    uint outer = rest / p.indices;
    int at = index[k * INDEX_WORDS];
    at = clamp(at < 0 ? at + int(p.size) : at, 0, int(p.size) - 1);
    y[i] = x[(outer * p.size + uint(at)) * p.inner + inner];
}
