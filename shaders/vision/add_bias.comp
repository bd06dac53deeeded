// Adds to every element the bias of its channel, in place.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 1, std430) buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint plane;
    uint channels;
} p;

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        y[i] = T(float(y[i]) + float(bias[i / p.plane % p.channels]));
    }
}
