// Convolution as a product, for devices with fast workgroup memory: a work-group computes 64 output channels
// of 64 elements, unfolding the input on the way. Weights are [group][channel][ic][kd][kh][kw], as models have them:
// no packed copy is made.
// variant: f32  T=float
// variant: f16  T=float16_t EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "unfold.glsl"

layout(local_size_x = 16, local_size_y = 16) in;
SPEC(1, uint, POINTWISE, 0u);     // whether every output element reads the input element at its own place
SPEC(2, uint, BIASED, 0u);
SPEC(3, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { T w[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { T bias[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

const uint TILE = 64u;
const uint DEPTH = 16u;

// Padded, so that channels of neighbouring depths are in different banks.
shared vec4 a_tile[DEPTH][TILE / 4u + 1u];
shared float b_tile[DEPTH][TILE];

void main()
{
    uint tx = gl_LocalInvocationID.x;
    uint ty = gl_LocalInvocationID.y;
    uint t = gl_LocalInvocationIndex;
    uint group = gl_WorkGroupID.z % p.groups;
    uint image = gl_WorkGroupID.z / p.groups;
    uint plane = p.ow * p.oh * p.od;
    uint first_channel = gl_WorkGroupID.y * TILE;
    uint first_element = gl_WorkGroupID.x * TILE;

    // The element whose inputs this invocation loads, and the depths at which it does.
    uint load_element = first_element + t % TILE;
    uint load_depth = t / TILE;
    int z0 = int(load_element / (p.ow * p.oh)) * p.sd - p.pd;
    int v0 = int(load_element / p.ow % p.oh) * p.sh - p.ph;
    int u0 = int(load_element % p.ow) * p.sw - p.pw;
    int in_plane = p.id * p.ih * p.iw;
    int x_first = int((image * p.groups + group) * p.ic) * in_plane;
    uint taps = p.kd * p.kh * p.kw;
    uint depth = p.ic * taps;
    uint w_first = (group * p.oc + first_channel) * depth;

    vec4 sums[4];
    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
        sums[j] = vec4(0.0);
    }
    for (uint k0 = 0u; k0 < depth; k0 += DEPTH) {
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            uint k = k0 + t % 16u;
            uint channel = t / 16u + 16u * q;
            bool inside = k < depth && first_channel + channel < p.oc;
            a_tile[t % 16u][channel / 4u][channel % 4u] = inside ? float(w[w_first + channel * depth + k]) : 0.0;
        }
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            uint k = k0 + load_depth + 4u * q;
            float v = 0.0;
            if (k < depth && load_element < plane) {
                if (POINTWISE != 0u) {
                    v = float(x[x_first + int(k) * in_plane + int(load_element)]);
                } else {
                    uint channel = k / taps;
                    uint tap = k - channel * taps;
                    uint kw = tap % p.kw;
                    uint rest = tap / p.kw;
                    int z = z0 + int(rest / p.kh) * p.dd;
                    int r = v0 + int(rest % p.kh) * p.dh;
                    int u = u0 + int(kw) * p.dw;
                    if (uint(z) < uint(p.id) && uint(r) < uint(p.ih) && uint(u) < uint(p.iw)) {
                        v = float(x[x_first + int(channel) * in_plane + (z * p.ih + r) * p.iw + u]);
                    }
                }
            }
            b_tile[load_depth + 4u * q][t % TILE] = v;
        }
        barrier();
        [[unroll]] for (uint k = 0u; k < DEPTH; ++k) {
            vec4 a = a_tile[k][ty];
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                sums[j] = fma(a, vec4(b_tile[k][tx + 16u * j]), sums[j]);
            }
        }
        barrier();
    }

    [[unroll]] for (uint k = 0u; k < 4u; ++k) {
        uint c = first_channel + 4u * ty + k;
        if (c < p.oc) {
            uint channel = group * p.oc + c;
            float b = BIASED != 0u ? float(bias[channel]) : 0.0;
            uint base = p.y_first + (image * p.groups * p.oc + channel) * p.yc;
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                uint e = first_element + tx + 16u * j;
                if (e < plane) {
                    uint at = e / (p.ow * p.oh) * p.yd + e / p.ow % p.oh * p.yh + e % p.ow * p.yw;
                    y[base + at] = T(activate(sums[j][k] + b, ACTIVATION, p.act_a, p.act_b));
                }
            }
        }
    }
}
