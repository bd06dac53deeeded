// y = a * x + b over n elements of type T; TEXEL reads x through a view of RGBA32F texels.
// variant: f32    T=float
// variant: f32x4  T=vec4
// variant: f32x4t T=vec4 TEXEL=1
#version 450
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

#ifdef TEXEL
layout(set = 0, binding = 0) uniform samplerBuffer x;
#define X(i) texelFetch(x, int(i))
#else
layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
#define X(i) x[i]
#endif
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
        y[i] = p.a * X(i) + p.b;
    }
}
