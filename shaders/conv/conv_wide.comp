// Convolution as a product, for devices with fast workgroup memory and many elements: a work-group computes 128
// output channels of 128 elements, an invocation 8 x 8. Channels are summed within a tap, so that a tap's place in
// the input is found once for a run of channels. Weights are packed as [group][kd][kh][kw][ic][channels], channels
// rounded up to fours.
// variant: f32   T=f32 VEC=vec4
// variant: f32x4 T=f32 VEC=vec4 OUT4
// variant: f16   T=f16 VEC=f16vec4 EXT_STORAGE16
// variant: f16x4 T=f16 VEC=f16vec4 EXT_STORAGE16 OUT4
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "unfold.glsl"

layout(local_size_x = 256) in;
#include "large_tiles.glsl"

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { VEC w[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { T bias[]; };
#include "channel.glsl"
// PLAIN, and whole quads of elements.
#include "parts.glsl"
#define SUMMAND 5
#include "output.glsl"

const uint TILE = 128u;  // rust: channels and elements of a tile
const uint DEPTH = 8u;   // rust: input channels that a step sums

// The step after the one that is summed is written meanwhile.
shared vec4 w_tile[2][DEPTH][TILE / 4u];
shared vec4 x_tile[2][DEPTH][TILE / 4u];

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint tx = t % 16u;
    uint ty = t / 16u;
    uint group = batch_of_part() % p.groups;
    uint image = batch_of_part() / p.groups;
    uint plane = p.ow * p.oh * p.od;
    uint first_channel = gl_WorkGroupID.y * TILE;
    uint first_element = gl_WorkGroupID.x * TILE;

    // This invocation loads four depths of one element, and four channels of one depth.
    uint element = first_element + t % TILE;
    uint x_depth = t / TILE * 4u;
    uint w_depth = t / 32u;
    int z0 = int(element / (p.ow * p.oh)) * p.sd - p.pd;
    int v0 = int(element / p.ow % p.oh) * p.sh - p.ph;
    int u0 = int(element % p.ow) * p.sw - p.pw;
    int in_plane = p.id * p.ih * p.iw;
    int x_first = (int((image * p.groups + group) * p.ic + x_depth)) * in_plane;
    uint w_row = (p.oc + 3u) / 4u;
    bool w_inside = first_channel / 4u + t % 32u < w_row;
    uint w_at = group * p.kd * p.kh * p.kw * p.ic * w_row + first_channel / 4u + t % 32u;

    vec4 sums[8][2];
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        sums[i][0] = vec4(0.0);
        sums[i][1] = vec4(0.0);
    }
    uint blocks = (p.ic + DEPTH - 1u) / DEPTH;
    uvec2 part = steps_of_part(p.kd * p.kh * p.kw * blocks);
    uint tap = part.x / blocks;
    uint channel = part.x % blocks * DEPTH;
    uint kd = tap / (p.kh * p.kw);
    uint kh = tap / p.kw % p.kh;
    uint kw = tap % p.kw;
    w_at += tap * p.ic * w_row;
    // Every turn loads one step and sums the step before it.
    for (uint s = part.x; s <= part.y; ++s) {
        vec4 w_next = vec4(0.0);
        vec4 x_next = vec4(0.0);
        if (s < part.y) {
            if (w_inside && channel + w_depth < p.ic) {
                w_next = vec4(w[w_at + (channel + w_depth) * w_row]);
            }
            int z = z0 + int(kd) * p.dd;
            int v = v0 + int(kh) * p.dh;
            int u = u0 + int(kw) * p.dw;
            if (element < plane && uint(z) < uint(p.id) && uint(v) < uint(p.ih) && uint(u) < uint(p.iw)) {
                int at = x_first + int(channel) * in_plane + (z * p.ih + v) * p.iw + u;
                [[unroll]] for (uint q = 0u; q < 4u; ++q) {
                    if (channel + x_depth + q < p.ic) {
                        x_next[q] = float(x[at + int(q) * in_plane]);
                    }
                }
            }
            channel += DEPTH;
            if (channel >= p.ic) {
                channel = 0u;
                w_at += p.ic * w_row;
                ++kw;
                if (kw == p.kw) {
                    kw = 0u;
                    ++kh;
                    if (kh == p.kh) {
                        kh = 0u;
                        ++kd;
                    }
                }
            }
        }
        if (s > part.x) {
            uint now = (s - 1u) & 1u;
            [[unroll]] for (uint k = 0u; k < DEPTH; ++k) {
                vec4 left[2] = {w_tile[now][k][ty], w_tile[now][k][ty + 16u]};
                vec4 right[2] = {x_tile[now][k][tx], x_tile[now][k][tx + 16u]};
                // Every second row backwards: neighbouring operations share a factor.
                [[unroll]] for (uint i = 0u; i < 8u; ++i) {
                    [[unroll]] for (uint n = 0u; n < 8u; ++n) {
                        uint j = i % 2u == 0u ? n : 7u - n;
                        sums[i][j / 4u][j % 4u] = fma(left[i / 4u][i % 4u], right[j / 4u][j % 4u], sums[i][j / 4u][j % 4u]);
                    }
                }
            }
        }
        uint next = s & 1u;
        w_tile[next][w_depth][t % 32u] = w_next;
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            x_tile[next][x_depth + q][t % TILE / 4u][t % 4u] = x_next[q];
        }
        barrier();
    }

    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint c = first_channel + 64u * (i / 4u) + 4u * ty + i % 4u;
        if (PARTS > 1u && c < p.oc) {
            uint first = first_of_part(p.oc, plane) + c * plane + first_element + 4u * tx;
            [[unroll]] for (uint j = 0u; j < 2u; ++j) {
#ifdef OUT4
                if (first_element + 64u * j + 4u * tx < plane) {
                    part_sums[(first + 64u * j) / 4u] = sums[i][j];
                }
#else
                [[unroll]] for (uint q = 0u; q < 4u; ++q) {
                    if (first_element + 64u * j + 4u * tx + q < plane) {
                        part_sums[first + 64u * j + q] = sums[i][j][q];
                    }
                }
#endif
            }
        } else if (c < p.oc) {
            uint to = group * p.oc + c;
            float b = bias_of(to);
            float slope = slope_of(to, p.groups * p.oc, p.act_a);
            uint base = p.y_first + (image * p.groups * p.oc + to) * p.yc;
            [[unroll]] for (uint j = 0u; j < 2u; ++j) {
                uint e = first_element + 64u * j + 4u * tx;
#ifdef OUT4
                if (e < plane) {
                    uint at = (base + e) / 4u;
                    y[at] = VEC(activate4(plus_summand(sums[i][j] + b, at), ACTIVATION, slope, p.act_b));
                }
#else
                [[unroll]] for (uint q = 0u; q < 4u; ++q) {
                    if (e + q < plane) {
                        uint n = e + q;
                        uint strided = n / (p.ow * p.oh) * p.yd + n / p.ow % p.oh * p.yh + n % p.ow * p.yw;
                        uint at = base + (PLAIN != 0u ? n : strided);
                        float v = plus_summand(sums[i][j][q] + b, at);
                        y[at] = T(activate(v, ACTIVATION, slope, p.act_b));
                    }
                }
#endif
            }
        }
    }
}
