// Weighted sums of the results of a token's experts.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, TOP, 1u);   // experts of a token

layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Factors { float factors[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params { uint n, len; } p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint first = i / p.len * TOP;
    float sum = 0.0;
    for (uint s = 0u; s < TOP; ++s) {
        sum = fma(factors[first + s], x[(first + s) * p.len + i % p.len], sum);
    }
    y[i] = T(sum);
}
