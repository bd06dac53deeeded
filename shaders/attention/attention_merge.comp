// The results of parts of keys (attention_split.comp) as those of all keys: a work-group does one query of one head.
// Of each part there are its largest score, the sum of its weights, two unused numbers, and its weighted values.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 64) in;

layout(set = 0, binding = 0, std430) readonly buffer Parts { float parts[]; };
#define SINKS 1
#define ONLY_SINKS
#include "attention.glsl"
SPEC(9, uint, PARTS, 1u);     // of the keys
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

shared float shown[64];

void main()
{
    uint group = linear_group();
    if (group >= p.count) {
        return;
    }
    uint t = gl_LocalInvocationIndex;
    uint row = group % p.q_len;
    uint rest = group / p.q_len;
    begin(rest / p.q_heads, rest % p.q_heads);
    uint size = p.v_head + 4u;
    uint from = group * PARTS * size;
    float top = HIDDEN;
    for (uint n = t; n < PARTS; n += 64u) {
        top = max(top, parts[from + n * size]);
    }
    shown[t] = top;
    barrier();
    for (uint step = 32u; step > 0u; step /= 2u) {
        if (t < step) {
            shown[t] = max(shown[t], shown[t + step]);
        }
        barrier();
    }
    top = shown[0];
    float largest = top;
    barrier();
    float total = 0.0;
    for (uint n = t; n < PARTS; n += 64u) {
        total += parts[from + n * size + 1u] * weight(parts[from + n * size], top);
    }
    shown[t] = total;
    barrier();
    for (uint step = 32u; step > 0u; step /= 2u) {
        if (t < step) {
            shown[t] += shown[t + step];
        }
        barrier();
    }
    total = shown[0];
    float share = sink_into(top, total) / total;
    uint to = batch * p.y_batch + head * p.y_head + row * p.y_row;
    for (uint first = 0u; first < p.v_head; first += 64u) {
        uint d = first + t;
        float sum = 0.0;
        for (uint begins = 0u; begins < PARTS; begins += 64u) {
            barrier();
            uint n = begins + t;
            shown[t] = n < PARTS ? weight(parts[from + n * size], largest) : 0.0;
            barrier();
            // The parts of keys that a sequence has not reached come last, and weigh nothing.
            uint count = min(64u, PARTS - begins);
            for (uint i = 0u; i < count && d < p.v_head; ++i) {
                if (shown[i] > 0.0) {
                    sum = fma(shown[i], parts[from + (begins + i) * size + 4u + d], sum);
                }
            }
        }
        if (d < p.v_head) {
            y[to + d] = T(is_hidden(largest) ? 0.0 : sum * share);
        }
    }
}
