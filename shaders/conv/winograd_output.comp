// Products of transformed tiles and taps, src[point][channel][tile], as tiles of 4 by 4 elements of the output.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"
#include "winograd.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, BIASED, 0u);
SPEC(2, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer Src { float src[]; };
layout(set = 0, binding = 1, std430) readonly buffer Bias { T bias[]; };
#include "channel.glsl"
#define OUTPUT 2
#define SUMMAND 3
#include "output.glsl"

layout(push_constant) uniform Params
{
    uint n;
    uint channels;
    uint first, tiles;
    uint line;              // elements from one channel to the next
    uint across, of_image;  // tiles of a row of them, and of an image
    OUTPUT_2D
    float act_a, act_b;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint channel = i / p.tiles;
    uint tile = p.first + i % p.tiles;
    uint in_image = tile % p.of_image;
    uint oy = in_image / p.across * 4u;
    uint ox = in_image % p.across * 4u;
    uint point = p.channels * p.line;
    uint from = channel * p.line + i % p.tiles;
    // Rows of the output for each of the six columns.
    vec4 columns[6];
    [[unroll]] for (uint u = 0u; u < 6u; ++u) {
        float m[6];
        [[unroll]] for (uint v = 0u; v < 6u; ++v) {
            m[v] = src[from + (6u * v + u) * point];
        }
        columns[u] = of_products(m[0], m[1], m[2], m[3], m[4], m[5]);
    }
    float b = bias_of(channel);
    float slope = slope_of(channel, p.channels, p.act_a);
    uint to = ((tile / p.of_image * p.channels + channel) * p.oh + oy) * p.ow + ox;
    [[unroll]] for (uint v = 0u; v < 4u; ++v) {
        vec4 row = of_products(columns[0][v], columns[1][v], columns[2][v], columns[3][v], columns[4][v], columns[5][v]);
        if (oy + v < p.oh) {
            [[unroll]] for (uint u = 0u; u < 4u; ++u) {
                if (ox + u < p.ow) {
                    uint at = to + v * p.ow + u;
                    y[at] = T(activate(plus_summand(row[u] + b, at), ACTIVATION, slope, p.act_b));
                }
            }
        }
    }
}
