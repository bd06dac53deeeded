// Attention for devices with fast workgroup memory: a work-group does 64 queries of one head, 32 keys at a
// time, and keeps no scores but those; each of its outputs has at most 128 elements of a value.
// variant: f32       T=float
// variant: f32_bool  T=float BOOL_MASK EXT_INT8
// variant: f16       T=float16_t EXT_STORAGE16
// variant: f16_bool  T=float16_t EXT_STORAGE16 BOOL_MASK EXT_INT8
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 128) in;

layout(set = 0, binding = 0, std430) readonly buffer Q { T q[]; };
layout(set = 0, binding = 1, std430) readonly buffer K { T k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { T v[]; };
#include "attention.glsl"
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Scores { T shown[]; };

const uint ROWS = 64u;
const uint KEYS = 32u;
const uint DEPTH = 16u;
const uint COLS = 128u;
const uint CHUNK = 32u;       // columns of values loaded at once

const uint ROW_PITCH = ROWS + 4u;
const uint KEY_PITCH = KEYS + 4u;
const uint COL_PITCH = CHUNK + 4u;
const uint P_PITCH = KEYS + 1u;

// A slice of queries and one of keys, or a slice of values.
shared float pool[DEPTH * (ROW_PITCH + KEY_PITCH)];
shared float probs[ROWS * P_PITCH];
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
    float sums[4][4];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
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
            float left[4];
            float right[4];
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                left[i] = pool[d * ROW_PITCH + 4u * ty + i];
                right[i] = pool[KEY_POOL + d * KEY_PITCH + tx + 8u * i];
            }
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    sums[i][j] = fma(left[i], right[j], sums[i][j]);
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            probs[(4u * ty + i) * P_PITCH + tx + 8u * j] = sums[i][j] * p.scale;
        }
    }
    barrier();
    // Neighbouring invocations take neighbouring keys, as they lie in the mask.
    uint n = t % KEYS;
    for (uint r = t / KEYS; r < ROWS; r += 128u / KEYS) {
        float s = probs[r * P_PITCH + n];
        show(1u, row + r, key + n, s);
        s = capped(s);
        show(2u, row + r, key + n, s);
        s = masked(s, row + r < p.q_len && key + n < p.kv_len ? bias(row + r, key + n) : HIDDEN);
        show(3u, row + r, key + n, s);
        probs[r * P_PITCH + n] = s;
    }
    barrier();
}

void main()
{
    uint group = linear_group();
    if (group >= p.count) {
        return;
    }
    t = gl_LocalInvocationIndex;
    tx = t % 8u;
    ty = t / 8u;
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

    float sums[COLS / CHUNK][4][4];
    [[unroll]] for (uint c = 0u; c < COLS / CHUNK; ++c) {
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
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
    if (STAGE != 0u) {
        range = ivec2(0, int(p.kv_len));
    }
    for (int first = range.x; first < range.y; first += int(KEYS)) {
        uint key = uint(first);
        score(key);
        if (t < ROWS) {
            float top = tops[t];
            for (uint j = 0u; j < KEYS; ++j) {
                top = max(top, probs[t * P_PITCH + j]);
            }
            float factor = is_hidden(tops[t]) ? 0.0 : exp(tops[t] - top);
            float total = 0.0;
            for (uint j = 0u; j < KEYS; ++j) {
                float w = weight(probs[t * P_PITCH + j], top);
                probs[t * P_PITCH + j] = w;
                total += w;
            }
            tops[t] = top;
            totals[t] = totals[t] * factor + total;
            factors[t] = factor;
        }
        barrier();
        [[unroll]] for (uint c = 0u; c < COLS / CHUNK; ++c) {
            if (c * CHUNK < cols) {
                [[unroll]] for (uint n = 0u; n < KEYS / 4u; ++n) {
                    uint r = t / CHUNK + 4u * n;
                    uint d = c * CHUNK + t % CHUNK;
                    bool inside = int(key + r) < valid && d < cols;
                    pool[r * COL_PITCH + t % CHUNK] = inside ? float(v[v_first + (key + r) * p.v_row + col + d]) : 0.0;
                }
                barrier();
                [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                        sums[c][i][j] *= factors[4u * ty + i];
                    }
                }
                for (uint n = 0u; n < KEYS; ++n) {
                    float left[4];
                    float right[4];
                    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                        left[i] = probs[(4u * ty + i) * P_PITCH + n];
                        right[i] = pool[n * COL_PITCH + tx + 8u * i];
                    }
                    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                            sums[c][i][j] = fma(left[i], right[j], sums[c][i][j]);
                        }
                    }
                }
                barrier();
            }
        }
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint r = 4u * ty + i;
        float total = totals[r];
        float factor = is_hidden(tops[r]) ? 0.0 : 1.0 / total;
        if (row + r < p.q_len) {
            uint to = batch * p.y_batch + head * p.y_head + (row + r) * p.y_row + col;
            [[unroll]] for (uint c = 0u; c < COLS / CHUNK; ++c) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    uint d = c * CHUNK + tx + 8u * j;
                    if (d < cols) {
                        y[to + d] = T(is_hidden(tops[r]) ? 0.0 : sums[c][i][j] * factor);
                    }
                }
            }
        }
    }
    if (STAGE == 4u && shows) {
        // Once more, now that the sums are known.
        for (uint key = 0u; key < p.kv_len; key += KEYS) {
            score(key);
            uint n = t % KEYS;
            for (uint r = t / KEYS; r < ROWS; r += 128u / KEYS) {
                float w = weight(probs[r * P_PITCH + n], tops[r]) / totals[r];
                show(4u, row + r, key + n, is_hidden(tops[r]) ? 0.0 : w);
            }
            barrier();
        }
    }
}
