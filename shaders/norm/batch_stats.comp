// Mean and variance of each channel of x, a work-group each, and the running ones mixed with them.
// variant: f32  T=f32
// variant: f16  T=f16  EXT_FLOAT16=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, RUNNING, 2u);     // how many of the running statistics are wanted: mean, then variance

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer OldMean { T old_mean[]; };
layout(set = 0, binding = 2, std430) readonly buffer OldVar { T old_var[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Mean { float mean[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Var { float var[]; };
layout(set = 0, binding = 5, std430) writeonly buffer NewMean { T new_mean[]; };
layout(set = 0, binding = 6, std430) writeonly buffer NewVar { T new_var[]; };

layout(push_constant) uniform Params
{
    uint channels;
    uint batch;
    uint plane;
    float momentum;
} p;

#define LANES 64u
#include "total.glsl"

void main()
{
    uint c = linear_group();
    // The whole group leaves, so no barrier waits for it.
    if (c >= p.channels) {
        return;
    }
    uint lane = gl_LocalInvocationID.x;
    uint n = p.batch * p.plane;
    float sum = 0.0;
    for (uint i = lane; i < n; i += 64u) {
        sum += float(x[(i / p.plane * p.channels + c) * p.plane + i % p.plane]);
    }
    float center = total(sum) / float(n);
    sum = 0.0;
    for (uint i = lane; i < n; i += 64u) {
        float d = float(x[(i / p.plane * p.channels + c) * p.plane + i % p.plane]) - center;
        sum += d * d;
    }
    float spread = total(sum) / float(n);
    if (lane != 0u) {
        return;
    }
    mean[c] = center;
    var[c] = spread;
    if (RUNNING >= 1u) {
        new_mean[c] = T(mix(center, float(old_mean[c]), p.momentum));
    }
    if (RUNNING >= 2u) {
        new_var[c] = T(mix(spread, float(old_var[c]), p.momentum));
    }
}
