// The results of parts of keys (attention_split.comp) as those of all keys: a work-group does one query of one head.
// Of each part there are its largest score, the sum of its weights, two unused numbers, and its weighted values.
// variant: f32  T=f32 VEC=vec4
// variant: f16  T=f16 VEC=f16vec4 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 256) in;

layout(set = 0, binding = 0, std430) readonly buffer Parts { vec4 parts[]; };
#define SINKS 1
#define ONLY_SINKS
#include "attention.glsl"
SPEC(6, uint, COLS, 16u);     // groups of four in a value, rounded up to a power of two of 1 to 64
SPEC(9, uint, PARTS, 1u);     // of the keys
layout(set = 0, binding = 2, std430) writeonly buffer Y { VEC y[]; };

shared vec2 shown[256];
shared vec4 sums[256];

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
    uint col = t % COLS;
    uint strip = t / COLS;
    uint strips = 256u / COLS;
    uint size = p.v_head / 4u + 1u;
    uint from = group * PARTS * size;
    float top = HIDDEN;
    float total = 0.0;
    vec4 sum = vec4(0.0);
    for (uint begins = 0u; begins < PARTS; begins += 256u) {
        uint count = min(256u, PARTS - begins);
        if (t < count) {
            shown[t] = parts[from + (begins + t) * size].xy;
        }
        // What the parts of keys that a sequence has not reached have here weighs nothing.
        vec4 next = vec4(0.0);
        if (strip < count && 4u * col < p.v_head) {
            next = parts[from + (begins + strip) * size + 1u + col];
        }
        barrier();
        float most = top;
        for (uint n = 0u; n < count; ++n) {
            most = max(most, shown[n].x);
        }
        float factor = is_hidden(top) ? 0.0 : exp(top - most);
        sum *= factor;
        total *= factor;
        top = most;
        for (uint n = 0u; n < count; ++n) {
            total += shown[n].y * weight(shown[n].x, top);
        }
        for (uint n = strip; n < count; n += strips) {
            vec4 own = next;
            if (n + strips < count && 4u * col < p.v_head) {
                next = parts[from + (begins + n + strips) * size + 1u + col];
            }
            float w = weight(shown[n].x, top);
            if (w > 0.0) {
                sum = fma(vec4(w), own, sum);
            }
        }
        barrier();
    }
    sums[t] = sum;
    bool hidden = is_hidden(top);
    float share = sink_into(top, total) / total;
    barrier();
    if (t < COLS && 4u * t < p.v_head) {
        for (uint s = 1u; s < strips; ++s) {
            sum += sums[s * COLS + t];
        }
        uint to = batch * p.y_batch + head * p.y_head + row * p.y_row;
        y[to / 4u + t] = VEC(hidden ? vec4(0.0) : sum * share);
    }
}
