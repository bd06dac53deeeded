// Sorts tiles of lines, a work-group each, and writes the first `keep` elements of each with their positions.
// variant: f32  T=f32      FLOAT=1
// variant: f16  T=f16  FLOAT=1  EXT_FLOAT16=1
// variant: i32  T=i32
// variant: i64  T=i64    EXT_INT64=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

#define TILE 1024u  // rust: elements that a work-group sorts
// What stands after the end of a line comes after everything.
#define NOWHERE 0xffffffffu

LOCAL_SIZE(0, 128);
#include "top_k.glsl"

#include "order.glsl"

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Values { T values[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Places { uint places[]; };

layout(push_constant) uniform Params
{
    uint groups;
    uint tiles;     // of each line
    uint len;       // of each line
    uint inner;
    uint keep;
    uint run;       // elements that each tile has room for
} p;

shared T value[TILE];
shared uint place[TILE];

bool ordered(uint a, uint b)
{
    if (place[a] == NOWHERE || place[b] == NOWHERE) {
        return place[b] == NOWHERE;
    }
    return comes_before(value[a], place[a], value[b], place[b]);
}

void main()
{
    uint group = linear_group();
    // The whole group leaves, so no barrier waits for it.
    if (group >= p.groups) {
        return;
    }
    uint line = group / p.tiles;
    uint tile = group % p.tiles;
    uint first = tile * TILE;
    uint count = min(p.len - first, TILE);
    uint base = line / p.inner * p.len * p.inner + line % p.inner;
    uint lane = gl_LocalInvocationID.x;
    uint size = 2u;
    while (size < count) {
        size *= 2u;
    }
    for (uint i = lane; i < size; i += 128u) {
        bool inside = i < count;
        value[i] = inside ? x[base + (first + i) * p.inner] : T(0);
        place[i] = inside ? first + i : NOWHERE;
    }
    barrier();
    // Bitonic sort (K. Batcher, Sorting networks and their applications, 1968).
    for (uint block = 2u; block <= size; block *= 2u) {
        for (uint step = block / 2u; step > 0u; step /= 2u) {
            for (uint t = lane; t < size / 2u; t += 128u) {
                uint a = t / step * step * 2u + t % step;
                uint b = a + step;
                bool forward = (a & block) == 0u;
                if (ordered(a, b) != forward) {
                    T v = value[a];
                    value[a] = value[b];
                    value[b] = v;
                    uint at = place[a];
                    place[a] = place[b];
                    place[b] = at;
                }
            }
            barrier();
        }
    }
    uint kept = min(p.keep, count);
    for (uint i = lane; i < kept; i += 128u) {
        if (LAST != 0u) {
            uint to = (line / p.inner * p.keep + i) * p.inner + line % p.inner;
            values[to] = value[i];
            places[2u * to] = place[i];
            places[2u * to + 1u] = 0u;
        } else {
            uint to = group * p.run + i;
            values[to] = value[i];
            places[to] = place[i];
        }
    }
}
