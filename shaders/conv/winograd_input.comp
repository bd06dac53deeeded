// Tiles of 6 by 6 elements of the input that begin 4 apart, transformed: dst[point][channel][tile], from tile `first` of all
// images on, and zeros for channels that the input does not have.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "winograd.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Dst { float dst[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint ic;
    uint channels;          // zero padding included
    uint first, tiles;
    uint line;              // elements from one channel to the next
    uint across, of_image;  // tiles of a row of them, and of an image
    PADDED_PLANE
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
    int v0 = int(in_image / p.across) * 4 - p.ph;
    int u0 = int(in_image % p.across) * 4 - p.pw;
    int plane = int(tile / p.of_image * p.ic + channel) * p.ih;
    Line lines[6];
    [[unroll]] for (int v = 0; v < 6; ++v) {
        float d[6];
        bool row = channel < p.ic && uint(v0 + v) < uint(p.ih);
        int at = (plane + v0 + v) * p.iw + u0;
        [[unroll]] for (int u = 0; u < 6; ++u) {
            bool inside = row && uint(u0 + u) < uint(p.iw);
            float e = float(x[inside ? at + u : 0]);
            d[u] = inside ? e : 0.0;
        }
        lines[v] = of_input(d[0], d[1], d[2], d[3], d[4], d[5]);
    }
    uint point = p.channels * p.line;
    uint to = channel * p.line + i % p.tiles;
    [[unroll]] for (uint u = 0u; u < 6u; ++u) {
        float d[6];
        [[unroll]] for (uint v = 0u; v < 6u; ++v) {
            d[v] = u == 0u ? lines[v].first : u == 5u ? lines[v].last : lines[v].middle[(u + 3u) & 3u];
        }
        Line column = of_input(d[0], d[1], d[2], d[3], d[4], d[5]);
        dst[to + u * point] = column.first;
        [[unroll]] for (uint v = 0u; v < 4u; ++v) {
            dst[to + (6u * (v + 1u) + u) * point] = column.middle[v];
        }
        dst[to + (30u + u) * point] = column.last;
    }
}
