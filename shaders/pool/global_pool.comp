// One element for every channel: the largest, the mean or the norm of its elements. An invocation, or with
// GROUPED a work-group, does one channel.
// variant: f32          T=f32
// variant: f16          T=f16 EXT_STORAGE16
// variant: f32_grouped  T=f32 GROUPED
// variant: f16_grouped  T=f16 EXT_STORAGE16 GROUPED
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "pool_kind.glsl"

SPEC(1, uint, KIND, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint channels, plane;
    float power;
} p;

float combined(float a, float b)
{
    return KIND == KIND_MAX ? (b > a ? b : a) : a + b;
}

float mapped(float v)
{
    if (KIND == KIND_L1) {
        return abs(v);
    }
    if (KIND == KIND_L2) {
        return v * v;
    }
    if (KIND == KIND_LP) {
        return v == 0.0 ? 0.0 : pow(abs(v), p.power);
    }
    return v;
}

#define COMBINED(a, b) combined(a, b)
#include "lines.glsl"

void main()
{
    uint channel = vector_index();
    uint start = START;
    if (channel >= p.channels) {
        return;
    }
    uint first = channel * p.plane;
    float neutral = KIND == KIND_MAX ? uintBitsToFloat(0xff800000u) : 0.0;
    // In several parts, which loses less precision.
    vec4 acc = vec4(neutral);
    for (uint t = start; t < p.plane; t += 4u * STEP) {
        for (uint k = 0u; k < 4u; ++k) {
            uint at = t + k * STEP;
            if (at < p.plane) {
                acc[k] = combined(acc[k], mapped(float(x[first + at])));
            }
        }
    }
    float v = total(combined(combined(acc.x, acc.y), combined(acc.z, acc.w)));
    if (start == 0u) {
        if (KIND == KIND_MEAN) {
            v /= float(p.plane);
        } else if (KIND == KIND_L2) {
            v = sqrt(v);
        } else if (KIND == KIND_LP) {
            v = v == 0.0 ? 0.0 : pow(v, 1.0 / p.power);
        }
        y[channel] = T(v);
    }
}
