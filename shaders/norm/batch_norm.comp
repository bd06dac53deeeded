// Every channel scaled and shifted: y = (x - mean) / sqrt(var + epsilon) * scale + bias. An invocation does
// RUN neighbouring elements, or texels where channels are whole texels.
// variant: f32        T=f32 S=f32
// variant: f16        T=f16 S=f16 EXT_STORAGE16
// variant: f16_stats  T=f16 S=f32 EXT_STORAGE16
// variant: tex        T=f32 S=f32 TEXELS
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, ACTIVATION, 0u);

#ifdef TEXELS
layout(set = 0, binding = 0) uniform samplerBuffer x;
#else
layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
#endif
layout(set = 0, binding = 1, std430) readonly buffer Scale { T scale[]; };
layout(set = 0, binding = 2, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) readonly buffer Mean { S mean[]; };
layout(set = 0, binding = 4, std430) readonly buffer Var { S var[]; };
#ifdef TEXELS
layout(set = 0, binding = 5, std430) writeonly buffer Y { vec4 y[]; };
#else
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };
#endif

layout(push_constant) uniform Params
{
    uint n;             // invocations
    uint channels;
    uint plane;         // elements, or texels, of a channel
    float epsilon;
    float act_a, act_b;
} p;

const uint RUN = 8u;  // rust: elements of an invocation

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint runs = (p.plane + RUN - 1u) / RUN;
    uint channel = i / runs;
    uint t = (i - channel * runs) * RUN;
    uint c = channel % p.channels;
    float factor = float(scale[c]) / sqrt(float(var[c]) + p.epsilon);
    float m = float(mean[c]);
    float b = float(bias[c]);
    uint end = min(t + RUN, p.plane);
    for (; t < end; ++t) {
        uint at = channel * p.plane + t;
#ifdef TEXELS
        y[at] = activate4((texelFetch(x, int(at)) - m) * factor + b, ACTIVATION, p.act_a, p.act_b);
#else
        y[at] = T(activate((float(x[at]) - m) * factor + b, ACTIVATION, p.act_a, p.act_b));
#endif
    }
}
