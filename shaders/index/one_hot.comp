// y[o, k, i] = values[index[o, i] names k ? 1 : 0] over elements of any size.
// variant: b8    T=b8   EXT_INT8=1
// variant: b16   T=b16  EXT_INT16=1
// variant: b32   T=b32
// variant: b64   T=b64
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

// enum: IndexKind
#define INDEX_KIND_I32 0u  // int32
#define INDEX_KIND_I64 1u  // int64
#define INDEX_KIND_F32 2u  // float32, cut off

LOCAL_SIZE(0, 64);
SPEC(1, uint, INDEX_KIND, 0u);

layout(set = 0, binding = 0, std430) readonly buffer Index { int index[]; };
layout(set = 0, binding = 1, std430) readonly buffer Values { T values[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint len;       // of the new axis
    uint inner;
} p;

// The position of an index, or the length where it is out of range.
uint place(uint at)
{
    int size = int(p.len);
    int i;
    if (INDEX_KIND == INDEX_KIND_I64) {
        i = index[2u * at];
        if (index[2u * at + 1u] != i >> 31) {
            return p.len;
        }
    } else if (INDEX_KIND == INDEX_KIND_F32) {
        float v = intBitsToFloat(index[at]);
        if (!(abs(v) < 2147483520.0)) {
            return p.len;
        }
        i = int(v);
    } else {
        i = index[at];
    }
    i = i < 0 ? i + size : i;
    return i >= 0 && i < size ? uint(i) : p.len;
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint k = i / p.inner % p.len;
    uint outer = i / p.inner / p.len;
    y[i] = values[place(outer * p.inner + i % p.inner) == k ? 1u : 0u];
}
