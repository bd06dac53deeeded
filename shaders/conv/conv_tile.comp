// Convolution as a product, for devices with fast workgroup memory: a work-group computes 64 output channels of 64
// elements, or (small) 32 of 32 in four slices of the depth, unfolding the input on the way. Weights are
// [group][channel][ic][kd][kh][kw], as models have them: no packed copy is made.
// variant: f32          T=f32
// variant: f32x4        T=f32 VEC=vec4 OUT4
// variant: f16          T=f16 EXT_STORAGE16
// variant: f16x4        T=f16 VEC=f16vec4 EXT_STORAGE16 OUT4
// variant: f32_small    T=f32 SMALL
// variant: f32x4_small  T=f32 VEC=vec4 SMALL OUT4
// variant: f16_small    T=f16 EXT_STORAGE16 SMALL
// variant: f16x4_small  T=f16 VEC=f16vec4 EXT_STORAGE16 SMALL OUT4
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "unfold.glsl"

layout(local_size_x = 256) in;
SPEC(1, uint, POINTWISE, 0u);     // whether every output element reads the input element at its own place
SPEC(2, uint, BIASED, 0u);
SPEC(3, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { T w[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { T bias[]; };
#include "channel.glsl"
// The output's elements are contiguous, in whole quads.
#include "parts.glsl"
#define SUMMAND 5
#include "output.glsl"

#include "slices.glsl"

float w_next[LOADS];
float x_next[LOADS];

// The input that the element at (u, v, z) of the first tap has at depth `k`; negative where it is outside.
int tapped(uint k, ivec3 first)
{
    uint taps = p.kd * p.kh * p.kw;
    uint channel = k / taps;
    uint tap = k - channel * taps;
    uint rest = tap / p.kw;
    ivec3 at = first + ivec3(tap % p.kw, rest % p.kh, rest / p.kh) * ivec3(p.dw, p.dh, p.dd);
    bool inside = all(lessThan(uvec3(at), uvec3(p.iw, p.ih, p.id)));
    return inside ? ((int(channel) * p.id + at.z) * p.ih + at.y) * p.iw + at.x : -1;
}

// Loads the elements of a step. Guards select among loaded values: loads in branches wait for one another.
void load(uint k0, uint depth, uint channels, uint w_first, uint element, uint plane, ivec3 first, int x_first)
{
    uint t = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        uvec2 at = place(true, t + i * THREADS);
        bool inside = k0 + at.y < depth && at.x < channels;
        float v = float(w[inside ? w_first + at.x * depth + k0 + at.y : 0u]);
        w_next[i] = inside ? v : 0.0;
        uint k = k0 + place(false, t + i * THREADS).y;
        int from = POINTWISE != 0u ? int(k * plane + element) : tapped(k, first);
        inside = k < depth && element < plane && from >= 0;
        v = float(x[inside ? x_first + from : 0]);
        x_next[i] = inside ? v : 0.0;
    }
}

void put()
{
    uint t = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        put_a(place(true, t + i * THREADS), w_next[i]);
        put_b(place(false, t + i * THREADS), x_next[i]);
    }
}

void main()
{
    uint group = batch_of_part() % p.groups;
    uint image = batch_of_part() / p.groups;
    uint plane = p.ow * p.oh * p.od;
    uint first_channel = gl_WorkGroupID.y * TILE;
    uint first_element = gl_WorkGroupID.x * TILE;

    // The element whose inputs this invocation loads.
    uint element = first_element + gl_LocalInvocationIndex % TILE;
    ivec3 place = ivec3(element % p.ow, element / p.ow % p.oh, element / (p.ow * p.oh));
    ivec3 first = place * ivec3(p.sw, p.sh, p.sd) - ivec3(p.pw, p.ph, p.pd);
    int x_first = int((image * p.groups + group) * p.ic) * (p.id * p.ih * p.iw);
    uint depth = p.ic * p.kd * p.kh * p.kw;
    uint channels = p.oc - first_channel;
    uint w_first = (group * p.oc + first_channel) * depth;

    vec4 sums[4] = {vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0)};
    // Every turn loads one step and sums the step before it.
    uvec2 part = DEPTH * steps_of_part((depth + DEPTH - 1u) / DEPTH);
    for (uint k0 = part.x; k0 <= part.y; k0 += DEPTH) {
        if (k0 < part.y) {
            load(k0, depth, channels, w_first, element, plane, first, x_first);
        }
        if (k0 > part.x) {
            sum_step(sums);
            barrier();
        }
        if (k0 < part.y) {
            put();
        }
        barrier();
    }
    if (!sum_slices(sums)) {
        return;
    }

    uvec2 at = corner() + uvec2(first_channel, first_element);
    if (PARTS > 1u) {
        uint to = first_of_part(p.oc, plane);
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            uint from = to + (at.x + i) * plane + at.y;
#ifdef OUT4
            if (at.x + i < p.oc && at.y < plane) {
                part_sums[from / 4u] = sums[i];
            }
#else
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                if (at.x + i < p.oc && at.y + j < plane) {
                    part_sums[from + j] = sums[i][j];
                }
            }
#endif
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        if (at.x + i < p.oc) {
            uint channel = group * p.oc + at.x + i;
            float b = bias_of(channel);
            float slope = slope_of(channel, p.groups * p.oc, p.act_a);
            uint base = p.y_first + (image * p.groups * p.oc + channel) * p.yc;
#ifdef OUT4
            if (at.y < plane) {
                uint to = (base + at.y) / 4u;
                y[to] = VEC(activate4(plus_summand(sums[i] + b, to), ACTIVATION, slope, p.act_b));
            }
#else
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                uint e = at.y + j;
                if (e < plane) {
                    uint to = base + e / (p.ow * p.oh) * p.yd + e / p.ow % p.oh * p.yh + e % p.ow * p.yw;
                    y[to] = T(activate(plus_summand(sums[i][j] + b, to), ACTIVATION, slope, p.act_b));
                }
            }
#endif
        }
    }
}
