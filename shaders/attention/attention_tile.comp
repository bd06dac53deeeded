// Attention for devices with fast workgroup memory: a work-group does 32 or 16 queries of one head, 64 keys at a
// time, and keeps no scores but those; each of its outputs has at most 128 elements of a value.
// variant: f32             T=f32
// variant: f32_bool        T=f32 BOOL_MASK EXT_INT8
// variant: f32_small       T=f32 SMALL
// variant: f32_bool_small  T=f32 BOOL_MASK EXT_INT8 SMALL
// variant: f16             T=f16 EXT_STORAGE16
// variant: f16_bool        T=f16 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f16_small       T=f16 EXT_STORAGE16 SMALL
// variant: f16_bool_small  T=f16 EXT_STORAGE16 BOOL_MASK EXT_INT8 SMALL
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 128) in;

layout(set = 0, binding = 0, std430) readonly buffer Q { T q[]; };
layout(set = 0, binding = 1, std430) readonly buffer K { T k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { T v[]; };
#define SINKS 7
#include "attention.glsl"
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Scores { T shown[]; };

// An invocation does OWN queries and 4 keys, or 4 elements of a value; ACROSS of them lie side by side.
#ifdef SMALL
const uint ROWS = 16u;            // rust SMALL_ROWS: queries of a small work-group
const uint LOADED = 32u;          // keys of which values are loaded at once
#else
const uint ROWS = 32u;            // rust: queries of a work-group
const uint LOADED = 16u;
#endif
const uint ACROSS = 16u;
const uint OWN = ROWS / (128u / ACROSS);
const uint KEYS = 4u * ACROSS;
const uint DEPTH = 16u;
const uint COLS = 128u;           // rust: elements of a value in one work-group
const uint CHUNK = 4u * ACROSS;   // columns of values loaded at once
const uint LANES = 128u / ROWS;   // invocations that share the softmax of a query

const uint ROW_PITCH = ROWS + 4u;
const uint KEY_PITCH = KEYS + 4u;
const uint COL_PITCH = CHUNK + 4u;
const uint P_PITCH = KEYS + 1u;

// A slice of queries and one of keys, or a slice of values: the larger of the two.
#ifdef SMALL
shared float pool[LOADED * COL_PITCH];
#else
shared float pool[DEPTH * (ROW_PITCH + KEY_PITCH)];
#endif
shared float probs[ROWS * P_PITCH];
shared float partial[128];
shared float tops[ROWS];
shared float totals[ROWS];
shared float factors[ROWS];

uint t;
uint tx;
uint ty;
uint row;      // first query
uint q_first;
uint k_first;
uint v_first;
bool shows;    // whether this work-group stores scores

void show(uint stage, uint i, uint j, float s)
{
    if (STAGE == stage && shows && i < p.q_len && j < p.kv_len) {
        shown[((batch * p.q_heads + head) * p.q_len + i) * p.kv_len + j] = T(s);
    }
}

// The scores of KEYS keys from `key` on, masks added, in `probs`.
void score(uint key)
{
    float sums[OWN][4];
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            sums[i][j] = 0.0;
        }
    }
    const uint KEY_POOL = DEPTH * ROW_PITCH;
    for (uint d0 = 0u; d0 < p.head; d0 += DEPTH) {
        // Neighbouring invocations load neighbouring elements.
        uint d = d0 + t % DEPTH;
        [[unroll]] for (uint n = 0u; n < ROWS / 8u; ++n) {
            uint r = t / DEPTH + 8u * n;
            bool inside = row + r < p.q_len && d < p.head;
            pool[(t % DEPTH) * ROW_PITCH + r] = inside ? float(q[q_first + (row + r) * p.q_row + d]) : 0.0;
        }
        [[unroll]] for (uint n = 0u; n < KEYS / 8u; ++n) {
            uint r = t / DEPTH + 8u * n;
            bool inside = key + r < p.kv_len && d < p.head;
            pool[KEY_POOL + (t % DEPTH) * KEY_PITCH + r] = inside ? float(k[k_first + (key + r) * p.k_row + d]) : 0.0;
        }
        barrier();
        for (uint d = 0u; d < DEPTH; ++d) {
            float left[OWN];
            float right[4];
            [[unroll]] for (uint i = 0u; i < OWN; ++i) {
                left[i] = pool[d * ROW_PITCH + OWN * ty + i];
            }
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                right[j] = pool[KEY_POOL + d * KEY_PITCH + tx + ACROSS * j];
            }
            [[unroll]] for (uint i = 0u; i < OWN; ++i) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    sums[i][j] = fma(left[i], right[j], sums[i][j]);
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            probs[(OWN * ty + i) * P_PITCH + tx + ACROSS * j] = sums[i][j] * p.scale;
        }
    }
    barrier();
    // Neighbouring invocations take neighbouring keys, as they lie in the mask.
    uint n = t % KEYS;
    for (uint r = t / KEYS; r < ROWS; r += 128u / KEYS) {
        float s = probs[r * P_PITCH + n];
        show(STAGE_PRODUCT, row + r, key + n, s);
        s = capped(s);
        show(STAGE_CAPPED, row + r, key + n, s);
        s = masked(s, row + r < p.q_len && key + n < p.kv_len ? bias(row + r, key + n) : HIDDEN);
        show(STAGE_MASKED, row + r, key + n, s);
        probs[r * P_PITCH + n] = s;
    }
    barrier();
}

// Scores become weights relative to the largest score so far; ends without a barrier.
void soften()
{
    uint r = t / LANES;
    uint from = r * P_PITCH + t % LANES * (KEYS / LANES);
    float old = tops[r];
    float most = old;
    [[unroll]] for (uint j = 0u; j < KEYS / LANES; ++j) {
        most = max(most, probs[from + j]);
    }
    partial[t] = most;
    barrier();
    [[unroll]] for (uint n = 0u; n < LANES; ++n) {
        most = max(most, partial[r * LANES + n]);
    }
    float total = 0.0;
    [[unroll]] for (uint j = 0u; j < KEYS / LANES; ++j) {
        float w = weight(probs[from + j], most);
        probs[from + j] = w;
        total += w;
    }
    barrier();
    partial[t] = total;
    barrier();
    if (t % LANES == 0u) {
        float factor = is_hidden(old) ? 0.0 : exp(old - most);
        [[unroll]] for (uint n = 1u; n < LANES; ++n) {
            total += partial[t + n];
        }
        tops[r] = most;
        totals[r] = totals[r] * factor + total;
        factors[r] = factor;
    }
}

void main()
{
    uint group = linear_group();
    if (group >= p.count) {
        return;
    }
    t = gl_LocalInvocationIndex;
    tx = t % ACROSS;
    ty = t / ACROSS;
    uint bands = (p.q_len + ROWS - 1u) / ROWS;
    row = group % bands * ROWS;
    uint rest = group / bands;
    uint slices = (p.v_head + COLS - 1u) / COLS;
    uint slice = rest % slices;
    rest /= slices;
    begin(rest / p.q_heads, rest % p.q_heads);
    shows = slice == 0u;
    uint kv = head / p.share;
    q_first = p.q_first + batch * p.q_batch + head * p.q_head;
    k_first = p.k_first + batch * p.k_batch + kv * p.k_head;
    v_first = p.v_first + batch * p.v_batch + kv * p.v_head_step;
    uint col = slice * COLS;
    uint cols = min(p.v_head - col, COLS);

    float sums[COLS / CHUNK][OWN][4];
    [[unroll]] for (uint c = 0u; c < COLS / CHUNK; ++c) {
        [[unroll]] for (uint i = 0u; i < OWN; ++i) {
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                sums[c][i][j] = 0.0;
            }
        }
    }
    if (t < ROWS) {
        tops[t] = HIDDEN;
        totals[t] = 0.0;
    }
    ivec2 range = seen(row, min(row + ROWS, p.q_len));
    if (STAGE != STAGE_NONE) {
        range = ivec2(0, int(p.kv_len));
    }
    for (int first = range.x; first < range.y; first += int(KEYS)) {
        uint key = uint(first);
        score(key);
        soften();
        barrier();
        [[unroll]] for (uint c = 0u; c < COLS / CHUNK; ++c) {
            if (c * CHUNK < cols) {
                [[unroll]] for (uint i = 0u; i < OWN; ++i) {
                    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                        sums[c][i][j] *= factors[OWN * ty + i];
                    }
                }
                for (uint part = 0u; part < KEYS; part += LOADED) {
                    [[unroll]] for (uint n = 0u; n < LOADED * CHUNK / 128u; ++n) {
                        uint r = t / CHUNK + 128u / CHUNK * n;
                        uint d = c * CHUNK + t % CHUNK;
                        bool inside = int(key + part + r) < valid && d < cols;
                        uint from = v_first + (key + part + r) * p.v_row + col + d;
                        pool[r * COL_PITCH + t % CHUNK] = inside ? float(v[from]) : 0.0;
                    }
                    barrier();
                    for (uint n = 0u; n < LOADED; ++n) {
                        float left[OWN];
                        float right[4];
                        [[unroll]] for (uint i = 0u; i < OWN; ++i) {
                            left[i] = probs[(OWN * ty + i) * P_PITCH + part + n];
                        }
                        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                            right[j] = pool[n * COL_PITCH + tx + ACROSS * j];
                        }
                        [[unroll]] for (uint i = 0u; i < OWN; ++i) {
                            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                                sums[c][i][j] = fma(left[i], right[j], sums[c][i][j]);
                            }
                        }
                    }
                    barrier();
                }
            }
        }
    }
    barrier();
    if (t < ROWS) {
        factors[t] = sink_into(tops[t], totals[t]);
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        uint r = OWN * ty + i;
        float factor = is_hidden(tops[r]) ? 0.0 : factors[r] / totals[r];
        if (row + r < p.q_len) {
            uint to = batch * p.y_batch + head * p.y_head + (row + r) * p.y_row + col;
            [[unroll]] for (uint c = 0u; c < COLS / CHUNK; ++c) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    uint d = c * CHUNK + tx + ACROSS * j;
                    if (d < cols) {
                        y[to + d] = T(is_hidden(tops[r]) ? 0.0 : sums[c][i][j] * factor);
                    }
                }
            }
        }
    }
    if (STAGE == STAGE_SOFTMAX && shows) {
        // Once more, now that the sums are known.
        for (uint key = 0u; key < p.kv_len; key += KEYS) {
            score(key);
            uint n = t % KEYS;
            for (uint r = t / KEYS; r < ROWS; r += 128u / KEYS) {
                float w = weight(probs[r * P_PITCH + n], tops[r]) / totals[r];
                show(STAGE_SOFTMAX, row + r, key + n, is_hidden(tops[r]) ? 0.0 : w);
            }
            barrier();
        }
    }
}
