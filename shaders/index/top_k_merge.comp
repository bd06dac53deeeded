// Merges pairs of sorted runs of each line and keeps the first `keep` elements: every element counts those of
// the other run that come before it.
// variant: f32  T=f32      FLOAT=1
// variant: f16  T=f16  FLOAT=1  EXT_FLOAT16=1
// variant: i32  T=i32
// variant: i64  T=i64    EXT_INT64=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
#include "top_k.glsl"

#include "order.glsl"

layout(set = 0, binding = 0, std430) readonly buffer From { T from[]; };
layout(set = 0, binding = 1, std430) readonly buffer FromPlaces { uint from_places[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Values { T values[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Places { uint places[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint runs;      // of each line
    uint run;       // elements of each but the last
    uint last_run;  // elements of the last, at most `run`
    uint next_runs; // of each line, afterwards
    uint next_run;  // elements that each has room for, afterwards
    uint inner;
    uint keep;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint in_line = (p.runs - 1u) * p.run + p.last_run;
    uint line = i / in_line;
    uint rest = i % in_line;
    uint run = rest / p.run;
    uint j = rest - run * p.run;
    uint at = (line * p.runs + run) * p.run + j;
    T value = from[at];
    uint place = from_places[at];
    uint other = run ^ 1u;
    uint rank = j;
    if (other < p.runs) {
        uint first = (line * p.runs + other) * p.run;
        uint low = 0u;
        uint high = other == p.runs - 1u ? p.last_run : p.run;
        while (low < high) {
            uint middle = (low + high) / 2u;
            if (comes_before(from[first + middle], from_places[first + middle], value, place)) {
                low = middle + 1u;
            } else {
                high = middle;
            }
        }
        rank += low;
    }
    if (rank >= p.keep) {
        return;
    }
    if (LAST != 0u) {
        uint to = (line / p.inner * p.keep + rank) * p.inner + line % p.inner;
        values[to] = value;
        places[2u * to] = place;
        places[2u * to + 1u] = 0u;
    } else {
        uint to = (line * p.next_runs + run / 2u) * p.next_run + rank;
        values[to] = value;
        places[to] = place;
    }
}
