// Convolution over two dimensions, the input read through an image of planes one below another: an invocation
// computes four output channels of PX neighbouring elements of a row. Weights are packed as
// [group][channel / 4][ic][kh][kw][4].
// variant: f32  T=f32 VEC=vec4
// variant: f16  T=f16 VEC=f16vec4 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "window.glsl"
#include "activation.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, BIASED, 0u);
SPEC(2, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0) uniform sampler2D x;
layout(set = 0, binding = 1, std430) readonly buffer W { VEC w[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { T bias[]; };
#include "channel.glsl"
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;             // invocations
    OUTPUT_2D
    uint oc, groups;    // output channels of a group, groups
    uint ic;            // input channels of a group
    WINDOW_2D(uint)
    float act_a, act_b;
} p;

const uint PX = 4u;  // rust: neighbouring elements of an invocation

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint runs = (p.ow + PX - 1u) / PX;
    uint col = (i % runs) * PX;
    i /= runs;
    uint row = i % p.oh;
    i /= p.oh;
    uint tiles = (p.oc + 3u) / 4u;
    uint tile = i % tiles;
    i /= tiles;   // image * groups + group

    int u0 = int(col) * p.sw - p.pw;
    int v0 = int(row) * p.sh - p.ph;
    int plane = int(i * p.ic) * p.ih;
    uint at = (i % p.groups * tiles + tile) * p.ic * p.kh * p.kw;
    vec4 sums[PX];
    [[unroll]] for (uint k = 0u; k < PX; ++k) {
        sums[k] = vec4(0.0);
    }
    for (uint c = 0u; c < p.ic; ++c, plane += p.ih) {
        for (uint a = 0u; a < p.kh; ++a, at += p.kw) {
            int v = v0 + int(a) * p.dh;
            if (uint(v) >= uint(p.ih)) {
                continue;
            }
            for (uint b = 0u; b < p.kw; ++b) {
                vec4 weight = vec4(w[at + b]);
                int u = u0 + int(b) * p.dw;
                [[unroll]] for (uint k = 0u; k < PX; ++k) {
                    float e = texelFetch(x, ivec2(clamp(u, 0, p.iw - 1), plane + v), 0).x;
                    sums[k] += (uint(u) < uint(p.iw) ? e : 0.0) * weight;
                    u += p.sw;
                }
            }
        }
    }
    for (uint lane = 0u; lane < 4u; ++lane) {
        uint channel = tile * 4u + lane;
        if (channel >= p.oc) {
            return;
        }
        uint of_all = i % p.groups * p.oc + channel;
        float b = bias_of(of_all);
        float slope = slope_of(of_all, p.groups * p.oc, p.act_a);
        uint first = ((i * p.oc + channel) * p.oh + row) * p.ow + col;
        [[unroll]] for (uint k = 0u; k < PX; ++k) {
            if (col + k < p.ow) {
                y[first + k] = T(activate(sums[k][lane] + b, ACTIVATION, slope, p.act_b));
            }
        }
    }
}
