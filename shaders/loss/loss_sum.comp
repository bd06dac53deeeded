// The sum of partial losses, divided by the sum of their weights for the mean; one work-group.
// variant: f32  T=f32
// variant: f16  T=f16  EXT_FLOAT16=1
#version 450
#include "types.glsl"
#include "spec.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer Sums { vec2 sums[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint mean;
} p;

shared vec2 part[64];

void main()
{
    uint lane = gl_LocalInvocationID.x;
    vec2 sum = vec2(0.0);
    for (uint i = lane; i < p.n; i += 64u) {
        sum += sums[i];
    }
    part[lane] = sum;
    barrier();
    for (uint half_ = 32u; half_ > 0u; half_ /= 2u) {
        if (lane < half_) {
            part[lane] += part[lane + half_];
        }
        barrier();
    }
    if (lane == 0u) {
        y[0] = T(p.mean != 0u ? part[0].x / part[0].y : part[0].x);
    }
}
