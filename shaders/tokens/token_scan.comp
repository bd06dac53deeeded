// The largest logit of each part of a line, and the sum of the weights there.
// variant: f32  T=f32
// variant: f16  T=f16  EXT_STORAGE16
#version 450
#include "types.glsl"
#include "grid.glsl"
#include "math.glsl"

layout(local_size_x = 256) in;
#include "token.glsl"
#include "total.glsl"

shared uint places[LANES];
shared uint odd;

const uint EACH = PART / LANES;
// Invocations whose largest logit is kept as one.
const uint GRAIN_LANES = LANES / GRAINS;

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
    if (part == 0u && lane == 0u) {
        results[first] = 0u;
    }
    uint line = setting(sequence, AT_LINE);
    if (line >= p.lines) {
        return;
    }
    uint flags = setting(sequence, AT_FLAGS);
    vec2 penalties = penalties_of(sequence);
    float temperature = uintBitsToFloat(setting(sequence, AT_TEMPERATURE));
    if (lane == 0u) {
        odd = 0u;
    }
    barrier();
    float own[EACH];
    float most = NEVER;
    uint place = 0xffffffffu;
    for (uint i = 0u; i < EACH; ++i) {
        uint token = part * PART + i * LANES + lane;
        own[i] = token < p.vocabulary ? logit(sequence, line, flags, penalties, token) : NEVER;
        if (is_nan(own[i])) {
            odd = 1u;
        }
        // The first one stays where two are equal.
        if (token < p.vocabulary && (own[i] > most || place == 0xffffffffu)) {
            most = own[i];
            place = token;
        }
    }
    parts[lane] = most;
    places[lane] = place;
    barrier();
    for (uint step = LANES / 2u; step > 0u; step /= 2u) {
        if (step == LANES / (2u * GRAIN_LANES) && lane < GRAINS) {
            grains[(sequence * p.parts + part) * GRAINS + lane] = parts[lane];
        }
        if (lane < step) {
            float other = parts[lane + step];
            bool before = other == parts[lane] && places[lane + step] < places[lane];
            if (other > parts[lane] || before) {
                parts[lane] = other;
                places[lane] = places[lane + step];
            }
        }
        barrier();
    }
    most = parts[0];
    place = places[0];
    barrier();
    float sum = 0.0;
    for (uint i = 0u; i < EACH; ++i) {
        // Infinite ones have no difference.
        sum += own[i] == most ? 1.0 : exp((own[i] - most) / temperature);
    }
    // What lies after the end of the line may be as large as the rest of the part.
    if (most == NEVER) {
        sum = 0.0;
    }
    sum = total(sum);
    if (lane == 0u) {
        uint at = first + HEAD + part * PART_WORDS;
        results[at] = floatBitsToUint(most);
        results[at + 1u] = place;
        results[at + 2u] = floatBitsToUint(sum);
        results[at + 3u] = odd;
    }
}
