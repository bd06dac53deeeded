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
    for (uint n = 0u; n < PARTS; ++n) {
        top = max(top, parts[from + n * size]);
    }
    float total = 0.0;
    for (uint n = 0u; n < PARTS; ++n) {
        total += parts[from + n * size + 1u] * weight(parts[from + n * size], top);
    }
    bool nothing = is_hidden(top);
    float largest = top;
    float share = sink_into(top, total) / total;
    uint to = batch * p.y_batch + head * p.y_head + row * p.y_row;
    for (uint d = t; d < p.v_head; d += 64u) {
        float sum = 0.0;
        for (uint n = 0u; n < PARTS; ++n) {
            float w = weight(parts[from + n * size], largest);
            sum = w > 0.0 ? fma(w, parts[from + n * size + 4u + d], sum) : sum;
        }
        y[to + d] = T(nothing ? 0.0 : sum * share);
    }
}
