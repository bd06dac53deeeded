// Pairs of tokens and experts in the order of experts, and tiles of at most ROWS pairs of one expert: its number,
// the tile's first place in that order, and its pairs. One work-group.
#version 450
#include "spec.glsl"

layout(local_size_x = 256) in;
SPEC(1, uint, ROWS, 32u);

layout(set = 0, binding = 0, std430) readonly buffer Chosen { uint chosen[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Order { uint sorted[]; };

layout(push_constant) uniform Params { uint pairs, experts, tiles; } p;

const uint EXPERTS = 1024u;  // rust: the most experts that are counted

shared uint counts[EXPERTS];

void main()
{
    uint t = gl_LocalInvocationIndex;
    for (uint e = t; e < EXPERTS; e += 256u) {
        counts[e] = 0u;
    }
    barrier();
    for (uint i = t; i < p.pairs; i += 256u) {
        atomicAdd(counts[min(chosen[i], EXPERTS - 1u)], 1u);
    }
    barrier();
    if (t == 0u) {
        uint first = 0u;
        uint tile = 0u;
        for (uint e = 0u; e < p.experts; ++e) {
            uint count = counts[e];
            for (uint at = 0u; at < count && tile < p.tiles; at += ROWS) {
                uint to = p.pairs + 3u * tile;
                sorted[to] = e;
                sorted[to + 1u] = first + at;
                sorted[to + 2u] = min(count - at, ROWS);
                ++tile;
            }
            counts[e] = first;
            first += count;
        }
        for (; tile < p.tiles; ++tile) {
            sorted[p.pairs + 3u * tile + 2u] = 0u;
        }
    }
    barrier();
    for (uint i = t; i < p.pairs; i += 256u) {
        uint at = atomicAdd(counts[min(chosen[i], EXPERTS - 1u)], 1u);
        sorted[at] = i;
    }
}
