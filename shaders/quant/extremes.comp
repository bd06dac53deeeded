// The smallest and the largest of the numbers and 0: each work-group writes those of its share.
#version 450
#include "spec.glsl"

layout(local_size_x = 64) in;

layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { vec2 y[]; };

layout(push_constant) uniform Params
{
    uint n;
} p;

shared vec2 shares[64];

void main()
{
    uint local = gl_LocalInvocationID.x;
    vec2 range = vec2(0.0);
    for (uint i = gl_GlobalInvocationID.x; i < p.n; i += gl_NumWorkGroups.x * 64u) {
        range = vec2(min(range.x, x[i]), max(range.y, x[i]));
    }
    shares[local] = range;
    for (uint half_size = 32u; half_size > 0u; half_size /= 2u) {
        barrier();
        if (local < half_size) {
            vec2 other = shares[local + half_size];
            range = vec2(min(range.x, other.x), max(range.y, other.y));
            shares[local] = range;
        }
    }
    if (local == 0u) {
        y[gl_WorkGroupID.x] = range;
    }
}
