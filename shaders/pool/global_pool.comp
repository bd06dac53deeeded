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

#ifdef GROUPED
layout(local_size_x = 256) in;
#else
LOCAL_SIZE(0, 8);
#endif
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

#ifdef GROUPED
const uint STEP = 256u;
shared float parts[STEP];

float total(float v)
{
    uint t = gl_LocalInvocationIndex;
    parts[t] = v;
    barrier();
    for (uint step = STEP / 2u; step > 0u; step /= 2u) {
        if (t < step) {
            parts[t] = combined(parts[t], parts[t + step]);
        }
        barrier();
    }
    return parts[0];
}
#else
const uint STEP = 1u;

float total(float v)
{
    return v;
}
#endif

void main()
{
#ifdef GROUPED
    uint channel = linear_group();
    uint start = gl_LocalInvocationIndex;
#else
    uint channel = linear_id();
    uint start = 0u;
#endif
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
