// Tokens whose logits are above a bound, in any order: a distance below the largest one, or what so many reach.
// variant: f32  T=f32
// variant: f16  T=f16  EXT_STORAGE16
#version 450
#include "types.glsl"
#include "grid.glsl"
#include "math.glsl"

layout(local_size_x = 256) in;
#include "token.glsl"

// Bits of a bound that are found.
const uint BITS = 20u;
const uint HELD = MOST_PARTS * GRAINS / LANES;

shared uint counts[BITS];

// A key that so many logits reach, of which few others do.
uint bound_of(uint sequence, uint count)
{
    uint lane = gl_LocalInvocationIndex;
    uint grains_of_line = p.parts * GRAINS;
    if (lane < BITS) {
        counts[lane] = 0u;
    }
    uint own[HELD];
    for (uint i = 0u; i < HELD; ++i) {
        uint at = i * LANES + lane;
        own[i] = at < grains_of_line ? key(grains[sequence * grains_of_line + at]) : 0u;
    }
    barrier();
    uint bound = 0u;
    for (uint i = 0u; i < BITS; ++i) {
        uint tried = bound | 0x80000000u >> i;
        uint above = 0u;
        for (uint j = 0u; j < HELD; ++j) {
            above += own[j] >= tried ? 1u : 0u;
        }
        if (above > 0u) {
            atomicAdd(counts[i], above);
        }
        barrier();
        bound = counts[i] >= count ? tried : bound;
    }
    return bound;
}

void main()
{
    uint group = linear_group();
    // The whole group leaves, so no barrier waits for it.
    if (group >= p.groups) {
        return;
    }
    uint sequence = group / p.parts;
    uint part = group % p.parts;
    uint lane = gl_LocalInvocationIndex;
    uint first = sequence * p.stride;
    uint line = setting(sequence, AT_LINE);
    uint count = setting(sequence, AT_COUNT);
    float distance = uintBitsToFloat(setting(sequence, AT_DISTANCE));
    if (line >= p.lines || (count == 0u && distance < 0.0)) {
        return;
    }
    uint bound;
    if (count > 0u) {
        bound = bound_of(sequence, count);
    } else {
        float most = NEVER;
        for (uint i = 0u; i < p.parts; ++i) {
            most = max(most, uintBitsToFloat(results[first + HEAD + i * PART_WORDS]));
        }
        bound = key(most - distance);
    }
    if (part == 0u && lane == 0u) {
        results[first + 1u] = bound;
    }
    uint flags = setting(sequence, AT_FLAGS);
    vec2 penalties = penalties_of(sequence);
    uint tokens = first + HEAD + p.parts * PART_WORDS;
    for (uint token = part * PART + lane; token < min((part + 1u) * PART, p.vocabulary); token += LANES) {
        float v = logit(sequence, line, flags, penalties, token);
        if (key(v) >= bound && v > NEVER) {
            uint at = atomicAdd(results[first], 1u);
            if (at < CANDIDATES) {
                results[tokens + at] = token;
                results[tokens + CANDIDATES + at] = floatBitsToUint(v);
            }
        }
    }
}
