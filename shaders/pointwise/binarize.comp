// y = 1 where x is above a threshold, else 0.
// variant: f32  T=float
// variant: f16  T=float16_t  EXT_FLOAT16=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    float threshold;
} p;

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        y[i] = T(float(x[i]) > p.threshold ? 1.0 : 0.0);
    }
}
