// Taps of 3 by 3, transformed: dst[point][oc][row], zeros after the last input channel.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "winograd.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer W { T w[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Dst { float dst[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint ic;
    uint row;     // input channels, zero padding included
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint channel = i % p.row;
    uint from = (i / p.row * p.ic + channel) * 9u;
    Line lines[3];
    [[unroll]] for (uint v = 0u; v < 3u; ++v) {
        float g[3];
        [[unroll]] for (uint u = 0u; u < 3u; ++u) {
            g[u] = channel < p.ic ? float(w[from + 3u * v + u]) : 0.0;
        }
        lines[v] = of_taps(g[0], g[1], g[2]);
    }
    [[unroll]] for (uint u = 0u; u < 6u; ++u) {
        float g[3];
        [[unroll]] for (uint v = 0u; v < 3u; ++v) {
            g[v] = u == 0u ? lines[v].first : u == 5u ? lines[v].last : lines[v].middle[(u + 3u) & 3u];
        }
        Line column = of_taps(g[0], g[1], g[2]);
        dst[i + u * p.n] = column.first;
        [[unroll]] for (uint v = 0u; v < 4u; ++v) {
            dst[i + (6u * (v + 1u) + u) * p.n] = column.middle[v];
        }
        dst[i + (30u + u) * p.n] = column.last;
    }
}
