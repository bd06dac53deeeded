// Depthwise convolution of each position with earlier ones; positions before the first come from a state.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, BIASED, 0u);
SPEC(2, uint, PAST, 0u);
SPEC(3, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { T w[]; };
layout(set = 0, binding = 2, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) readonly buffer Past { T past[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint channels, len, taps, dilation;
    float act_a, act_b;
} p;

void main()
{
    uint id = linear_id();
    if (id >= p.n) {
        return;
    }
    uint row = id / p.len;
    int i = int(id % p.len);
    uint c = row % p.channels;
    int before = (int(p.taps) - 1) * int(p.dilation);
    float sum = BIASED != 0u ? float(bias[c]) : 0.0;
    for (int k = 0; k < int(p.taps); ++k) {
        int at = i + k * int(p.dilation) - before;
        float v = 0.0;
        if (at >= 0) {
            v = float(x[row * p.len + uint(at)]);
        } else if (PAST != 0u) {
            v = float(past[row * uint(before) + uint(at + before)]);
        }
        sum = fma(v, float(w[c * p.taps + uint(k)]), sum);
    }
    y[id] = T(activate(sum, ACTIVATION, p.act_a, p.act_b));
}
