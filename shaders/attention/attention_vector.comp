// Attention of few queries, as in decoding: a work-group does one query of one head, 256 keys at a time.
// variant: f32       T=f32
// variant: f32_bool  T=f32 BOOL_MASK EXT_INT8
// variant: f16       T=f16 EXT_STORAGE16
// variant: f16_bool  T=f16 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f32_paged T=f32 PAGED
// variant: f16_paged T=f16 EXT_STORAGE16 PAGED
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 256) in;

layout(set = 0, binding = 0, std430) readonly buffer Q { T q[]; };
layout(set = 0, binding = 1, std430) readonly buffer K { T k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { T v[]; };
#define SINKS 6
#define PAGES_AT 7
#include "attention.glsl"
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };
SPEC(6, uint, COLS, 256u);    // elements of a value, rounded up to a power of two of 32 to 256

const uint KEYS = 256u;       // rust: the largest value
const uint PARTS = 8u;        // invocations that share the product with one key
const uint SUBS = KEYS * PARTS / 256u;
const uint HEAD_MAX = 512u;   // rust: the largest head of queries

shared float query[HEAD_MAX];
shared float parts[KEYS * PARTS];
shared float probs[KEYS];
shared float reduced[256];

float largest(float s)
{
    uint t = gl_LocalInvocationIndex;
    reduced[t] = s;
    barrier();
    for (uint step = 128u; step > 0u; step /= 2u) {
        if (t < step) {
            reduced[t] = max(reduced[t], reduced[t + step]);
        }
        barrier();
    }
    float top = reduced[0];
    barrier();
    return top;
}

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
    uint kv = head / p.share;
    uint q_first = p.q_first + batch * p.q_batch + head * p.q_head + row * p.q_row;
    uint k_first = p.k_first + batch * p.k_batch + kv * p.k_head;
    uint v_first = p.v_first + batch * p.v_batch + kv * p.v_head_step;
    for (uint d = t; d < p.head; d += 256u) {
        query[d] = float(q[q_first + d]);
    }
    barrier();

    uint col = t % COLS;
    uint strip = t / COLS;
    float top = HIDDEN;
    float total = 0.0;
    float sum = 0.0;
    ivec2 range = seen(row, row + 1u);
    for (int first = range.x; first < range.y; first += int(KEYS)) {
        uint key = uint(first);
        [[unroll]] for (uint s = 0u; s < SUBS; ++s) {
            uint n = key + s * (KEYS / SUBS) + t / PARTS;
            float product = 0.0;
            int stored = int(n) < range.y ? key_row(n) : -1;
            if (stored >= 0) {
                uint from = k_first + uint(stored) * p.k_row;
                for (uint d = t % PARTS; d < p.head; d += PARTS) {
                    product = fma(query[d], float(k[from + d]), product);
                }
            }
            parts[s * 256u + t] = product;
        }
        barrier();
        float s = HIDDEN;
        if (int(key + t) < range.y && key_row(key + t) >= 0) {
            float product = 0.0;
            [[unroll]] for (uint n = 0u; n < PARTS; ++n) {
                product += parts[t * PARTS + n];
            }
            s = masked(capped(product * p.scale), bias(row, key + t));
        }
        float new_top = max(top, largest(s));
        float factor = is_hidden(top) ? 0.0 : exp(top - new_top);
        float w = weight(s, new_top);
        total = total * factor + w;
        probs[t] = w;
        top = new_top;
        barrier();
        sum *= factor;
        if (col < p.v_head) {
            uint count = min(KEYS, uint(range.y) - key);
            for (uint n = strip; n < count; n += 256u / COLS) {
                int stored = key_row(key + n);
                if (stored >= 0) {
                    sum = fma(probs[n], float(v[v_first + uint(stored) * p.v_row + col]), sum);
                }
            }
        }
        barrier();
    }
    // The sum of the weights, each invocation's own part of them so far.
    reduced[t] = total;
    parts[t] = sum;
    barrier();
    for (uint step = 128u; step > 0u; step /= 2u) {
        if (t < step) {
            reduced[t] += reduced[t + step];
            if (step >= COLS) {
                parts[t] += parts[t + step];
            }
        }
        barrier();
    }
    if (t < COLS && t < p.v_head) {
        uint to = batch * p.y_batch + head * p.y_head + row * p.y_row;
        float total = reduced[0];
        float share = sink_into(top, total);
        y[to + t] = T(is_hidden(top) ? 0.0 : parts[t] * share / total);
    }
}
