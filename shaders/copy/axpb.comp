// y = a * x + b over n elements of type T.
// variant: f32    T=float
// variant: f32x4  T=vec4
#version 450
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    float a;
    float b;
} p;

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        y[i] = p.a * x[i] + p.b;
    }
}
