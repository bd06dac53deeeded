// The position of the largest or smallest element along one axis, as int64.
// variant: f32  T=f32      ACC=float  FLOAT=1
// variant: f16  T=f16  ACC=float  FLOAT=1  EXT_STORAGE16
// variant: i32  T=i32        ACC=int
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, SMALLEST, 0u);
SPEC(2, uint, LAST, 0u);      // of equal elements the last

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uvec2 y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint size;
    uint inner;
} p;

bool better(ACC v, ACC best)
{
#ifdef FLOAT
    // A NaN wins, as in NumPy: the first, or with LAST the last.
    if (isnan(v)) {
        return LAST != 0u || !isnan(best);
    }
    if (isnan(best)) {
        return false;
    }
#endif
    if (SMALLEST != 0u) {
        return v < best;
    }
    return v > best;
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = (i / p.inner) * p.size * p.inner + i % p.inner;
    ACC best = ACC(x[at]);
    uint found = 0u;
    for (uint k = 1u; k < p.size; ++k) {
        ACC v = ACC(x[at + k * p.inner]);
        if (better(v, best) || (LAST != 0u && v == best)) {
            best = v;
            found = k;
        }
    }
    y[i] = uvec2(found, 0u);
}
