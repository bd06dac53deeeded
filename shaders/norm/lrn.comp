// Every element divided by a sum over neighbouring channels.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
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
    uint channels;
    uint plane;             // elements of a channel
    uint before, after;    // channels summed over in addition to the element's own
    float factor, bias, exponent;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint c = i / p.plane % p.channels;
    uint low = c - min(c, p.before);
    uint high = min(p.channels - 1u, c + min(p.after, p.channels));
    float sum = 0.0;
    for (uint k = low; k <= high; ++k) {
        float v = float(x[i + k * p.plane - c * p.plane]);
        sum += v * v;
    }
    y[i] = T(float(x[i]) * pow(p.bias + p.factor * sum, p.exponent));
}
