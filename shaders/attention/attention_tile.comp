// Attention for devices with fast workgroup memory: a work-group does 64, (half) 32 or (small) 16 queries of one head, 64 keys
// at a time; scores and sums stay in registers. Each of its outputs has at most 128 or (narrow) 64 elements of a value.
// What it takes of workgroup memory and registers decides how many work-groups share a processor. With PAGED queries are tokens of
// several texts without padding, and their keys lie in pages: the texts of a work-group's queries come one after another. With
// CODED caches are words (coded_rows.glsl), which strides of keys and values count.
// variant: f32                    T=f32 OWN=8 COLS=128
// variant: f32_bool               T=f32 OWN=8 COLS=128 BOOL_MASK EXT_INT8
// variant: f32_narrow             T=f32 OWN=8 COLS=64
// variant: f32_narrow_bool        T=f32 OWN=8 COLS=64 BOOL_MASK EXT_INT8
// variant: f32_half               T=f32 OWN=4 COLS=128
// variant: f32_half_bool          T=f32 OWN=4 COLS=128 BOOL_MASK EXT_INT8
// variant: f32_half_narrow        T=f32 OWN=4 COLS=64
// variant: f32_half_narrow_bool   T=f32 OWN=4 COLS=64 BOOL_MASK EXT_INT8
// variant: f32_small              T=f32 OWN=2 COLS=128
// variant: f32_small_bool         T=f32 OWN=2 COLS=128 BOOL_MASK EXT_INT8
// variant: f32_small_narrow       T=f32 OWN=2 COLS=64
// variant: f32_small_narrow_bool  T=f32 OWN=2 COLS=64 BOOL_MASK EXT_INT8
// variant: f32_half_paged         T=f32 OWN=4 COLS=128 PAGED
// variant: f32_half_narrow_paged  T=f32 OWN=4 COLS=64 PAGED
// variant: f32_half_coded         T=f32 OWN=4 COLS=128 CODED
// variant: f32_half_narrow_coded  T=f32 OWN=4 COLS=64 CODED
// variant: f16                    T=f16 OWN=8 COLS=128 EXT_STORAGE16
// variant: f16_bool               T=f16 OWN=8 COLS=128 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f16_narrow             T=f16 OWN=8 COLS=64 EXT_STORAGE16
// variant: f16_narrow_bool        T=f16 OWN=8 COLS=64 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f16_half               T=f16 OWN=4 COLS=128 EXT_STORAGE16
// variant: f16_half_bool          T=f16 OWN=4 COLS=128 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f16_half_narrow        T=f16 OWN=4 COLS=64 EXT_STORAGE16
// variant: f16_half_narrow_bool   T=f16 OWN=4 COLS=64 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f16_small              T=f16 OWN=2 COLS=128 EXT_STORAGE16
// variant: f16_small_bool         T=f16 OWN=2 COLS=128 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f16_small_narrow       T=f16 OWN=2 COLS=64 EXT_STORAGE16
// variant: f16_small_narrow_bool  T=f16 OWN=2 COLS=64 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f16_half_paged         T=f16 OWN=4 COLS=128 EXT_STORAGE16 PAGED
// variant: f16_half_narrow_paged  T=f16 OWN=4 COLS=64 EXT_STORAGE16 PAGED
// variant: f16_half_coded         T=f16 OWN=4 COLS=128 EXT_STORAGE16 CODED
// variant: f16_half_narrow_coded  T=f16 OWN=4 COLS=64 EXT_STORAGE16 CODED
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 128) in;

layout(set = 0, binding = 0, std430) readonly buffer Q { T q[]; };
#ifdef CODED
layout(set = 0, binding = 1, std430) readonly buffer K { uint k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { uint v[]; };
layout(set = 0, binding = 8, std430) readonly buffer KScales { float k_scales[]; };
layout(set = 0, binding = 9, std430) readonly buffer VScales { float v_scales[]; };
#else
layout(set = 0, binding = 1, std430) readonly buffer K { T k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { T v[]; };
#endif
#define SINKS 7
#define PAGES_AT 8
#include "attention.glsl"
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Scores { T shown[]; };

// An invocation does OWN queries and 4 keys, or 4 elements of a value for every 64; ACROSS of them do other keys or elements.
const uint ACROSS = 16u;
const uint DOWN = 8u;                        // rust: and so many other queries
const uint THREADS = ACROSS * DOWN;
const uint ROWS = OWN * DOWN;
const uint KEYS = 4u * ACROSS;
const uint QUADS = COLS / (4u * ACROSS);     // quads of a value of an invocation
const uint DEPTH = 16u;                      // elements of queries and keys loaded at once
const uint LOADED = OWN == 8 ? 16u : COLS == 128 ? 8u : OWN == 2 ? 32u : 16u;  // values loaded at once
const uint UNROLLED = 8u;                    // on an H100 four took longer, and sixteen as long

// Lines of quads, with a quad of padding.
const uint ROW_LINE = ROWS / 4u + 1u;
const uint KEY_LINE = KEYS / 4u + 1u;
const uint COL_LINE = COLS / 4u + 1u;
const uint KEYS_AT = DEPTH * ROW_LINE;
const uint WEIGHTS_AT = LOADED * COL_LINE;

// A slice of queries and one of keys, or values and their weights.
shared vec4 pool[max(DEPTH * (ROW_LINE + KEY_LINE), LOADED * (COL_LINE + ROW_LINE))];
// A number of every invocation for each of its queries, and what they are together.
shared float parts[ROWS * (ACROSS + 1u)];
shared float wholes[ROWS];

const uint Q_LOADS = ROWS * DEPTH / THREADS;
const uint K_LOADS = KEYS * DEPTH / THREADS;
const uint V_LOADS = LOADED * COLS / THREADS;

uint t;
uint tx;
uint ty;
uint row;      // first query
uint q_first;
uint k_first;
uint v_first;
uint kv;       // head of keys and values
uint col;      // first element of a value
uint cols;     // elements of a value from that on
bool shows;    // whether this work-group stores scores
float q_next[Q_LOADS];
float k_next[K_LOADS];
float v_next[V_LOADS];
float scores[OWN][4];

#ifdef PAGED
// Of each query the number of keys that it sees, and its text; of each key of a step its row of the cache, -1 where there is none.
shared int ends[ROWS];
shared int texts[ROWS];
shared int stored[KEYS];
// Queries of the text whose keys are read, its keys from the next step on, and the end of them.
uint from;
uint to;
int next_key;
int end_key;

// Goes on to the next text that has keys for some of the first `count` queries.
void next_text(uint count)
{
    from = to;
    next_key = 0;
    end_key = 0;
    while (from < count && next_key >= end_key) {
        to = from;
        end_key = 0;
        while (to < count && texts[to] == texts[from]) {
            end_key = max(end_key, ends[to]);
            ++to;
        }
        next_key = p.left >= 0 ? max(ends[from] - 1 - p.left, 0) : 0;
        if (next_key >= end_key) {
            from = to;
        }
    }
}

void next_step(uint count)
{
    next_key += int(KEYS);
    if (next_key >= end_key) {
        next_text(count);
    }
}

// Finds the rows of the keys from `key` on.
void find_rows(uint key)
{
    if (t < KEYS) {
        int j = int(key + t);
        int page = j < end_key ? pages[uint(texts[from]) * PAGES + min(uint(j) / PAGE, PAGES - 1u)] : -1;
        stored[t] = page >= 0 && page < int(BLOCKS) ? page * int(PAGE) + j % int(PAGE) : -1;
    }
    barrier();
}

// The summand of the score of query `i` of the work-group and key number `n` of a step from `key` on.
float paged_bias(uint i, uint key, uint n)
{
    int j = int(key + n);
    bool inside = i >= from && i < to && j < ends[i] && (p.left < 0 || j >= ends[i] - 1 - p.left) && stored[n] >= 0;
    return inside ? 0.0 : HIDDEN;
}
#endif

void show(uint stage, uint i, uint j, float s)
{
    if (STAGE == stage && shows && i < p.q_len && j < p.kv_len) {
        shown[((batch * p.q_heads + head) * p.q_len + i) * p.kv_len + j] = T(s);
    }
}

#ifdef CODED
#include "coded_rows.glsl"
CODED_ELEMENT(key_element, k, k_scales, K_CHANNELS, p.head)
CODED_ELEMENT(value_element, v, v_scales, V_CHANNELS, p.v_head)
#endif

// Reads elements from `first` on of all queries and of the keys from `key` on; neighbouring invocations read neighbours.
void fetch_slices(uint key, uint first)
{
    const uint step = THREADS / DEPTH;
    uint r = t / DEPTH;
    uint d = first + t % DEPTH;
    uint q_at = q_first + (row + r) * p.q_row + d;
#ifdef PAGED
    [[unroll]] for (uint n = 0u; n < K_LOADS; ++n) {
        int at = stored[r + n * step];
        k_next[n] = at >= 0 && d < p.head ? float(k[k_first + uint(at) * p.k_row + d]) : 0.0;
    }
#elif defined(CODED)
    [[unroll]] for (uint n = 0u; n < K_LOADS; ++n) {
        uint at = key + r + n * step;
        k_next[n] = at < p.kv_len && d < p.head ? key_element(k_first + at * p.k_row, d, kv * p.head) : 0.0;
    }
#else
    uint k_at = k_first + (key + r) * p.k_row + d;
    if (row + ROWS <= p.q_len && key + KEYS <= p.kv_len && first + DEPTH <= p.head) {
        // Computed addresses took 4 percent longer on an H100.
        [[unroll]] for (uint n = 0u; n < Q_LOADS; ++n) {
            q_next[n] = float(q[q_at]);
            q_at += step * p.q_row;
        }
        [[unroll]] for (uint n = 0u; n < K_LOADS; ++n) {
            k_next[n] = float(k[k_at]);
            k_at += step * p.k_row;
        }
        return;
    }
#endif
    [[unroll]] for (uint n = 0u; n < Q_LOADS; ++n) {
        bool inside = row + r + n * step < p.q_len && d < p.head;
        q_next[n] = inside ? float(q[q_at + n * step * p.q_row]) : 0.0;
    }
#if !defined(PAGED) && !defined(CODED)
    [[unroll]] for (uint n = 0u; n < K_LOADS; ++n) {
        bool inside = key + r + n * step < p.kv_len && d < p.head;
        k_next[n] = inside ? float(k[k_at + n * step * p.k_row]) : 0.0;
    }
#endif
}

// Reads the values of LOADED keys from number `part` of the step at `key` on.
void fetch_values(uint key, uint part)
{
    const uint step = THREADS / COLS;
    uint c = t % COLS;
#ifdef PAGED
    [[unroll]] for (uint n = 0u; n < V_LOADS; ++n) {
        int at = stored[part + t / COLS + n * step];
        v_next[n] = at >= 0 && c < cols ? float(v[v_first + uint(at) * p.v_row + c]) : 0.0;
    }
#elif defined(CODED)
    [[unroll]] for (uint n = 0u; n < V_LOADS; ++n) {
        uint at = key + part + t / COLS + n * step;
        bool inside = c < cols && int(at) < valid;
        v_next[n] = inside ? value_element(v_first + at * p.v_row, col + c, kv * p.v_head) : 0.0;
    }
#else
    uint r = key + part + t / COLS;
    uint at = v_first + r * p.v_row + c;
    if (int(key + part + LOADED) <= valid && cols == COLS) {
        [[unroll]] for (uint n = 0u; n < V_LOADS; ++n) {
            v_next[n] = float(v[at]);
            at += step * p.v_row;
        }
        return;
    }
    [[unroll]] for (uint n = 0u; n < V_LOADS; ++n) {
        bool inside = c < cols && int(r + n * step) < valid;
        v_next[n] = inside ? float(v[at + n * step * p.v_row]) : 0.0;
    }
#endif
}

// Number `n` of four in row `i`; every second row is done backwards, so that neighbouring operations share a factor.
uint there_and_back(uint i, uint n)
{
    return i % 2u == 0u ? n : 3u - n;
}

// The own queries' numbers in a line of quads that begins at `at`.
void read_own(uint at, out float left[OWN])
{
#if OWN == 2
    vec4 quad = pool[at + ty / 2u];
    vec2 half_of = ty % 2u == 0u ? quad.xy : quad.zw;
    left[0] = half_of.x;
    left[1] = half_of.y;
#else
    [[unroll]] for (uint n = 0u; n < OWN / 4u; ++n) {
        vec4 quad = pool[at + ty * (OWN / 4u) + n];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            left[4u * n + i] = quad[i];
        }
    }
#endif
}

// The scores of the own queries and of 4 keys from `key` + 4 `tx` on, masks added. Reads the first values from `key` on, too.
void score(uint key)
{
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            scores[i][j] = 0.0;
        }
    }
#ifdef PAGED
    find_rows(key);
#endif
    fetch_slices(key, 0u);
    for (uint first = 0u; first < p.head; first += DEPTH) {
        uint r = t / DEPTH;
        uint line = t % DEPTH;
        [[unroll]] for (uint n = 0u; n < Q_LOADS; ++n) {
            uint at = r + THREADS / DEPTH * n;
            pool[line * ROW_LINE + at / 4u][at % 4u] = q_next[n];
        }
        [[unroll]] for (uint n = 0u; n < K_LOADS; ++n) {
            uint at = r + THREADS / DEPTH * n;
            pool[KEYS_AT + line * KEY_LINE + at / 4u][at % 4u] = k_next[n];
        }
        barrier();
        if (first + DEPTH < p.head) {
            fetch_slices(key, first + DEPTH);
        } else {
            fetch_values(key, 0u);
        }
        [[dont_unroll]] for (uint some = 0u; some < DEPTH; some += UNROLLED) {
            [[unroll]] for (uint e = 0u; e < UNROLLED; ++e) {
                uint d = some + e;
                float left[OWN];
                read_own(d * ROW_LINE, left);
                vec4 right = pool[KEYS_AT + d * KEY_LINE + tx];
                [[unroll]] for (uint i = 0u; i < OWN; ++i) {
                    [[unroll]] for (uint n = 0u; n < 4u; ++n) {
                        uint j = there_and_back(i, n);
                        scores[i][j] = fma(left[i], right[j], scores[i][j]);
                    }
                }
            }
        }
        barrier();
    }
#ifdef PAGED
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            float s = capped(scores[i][j] * p.scale);
            scores[i][j] = masked(s, paged_bias(OWN * ty + i, key, 4u * tx + j));
        }
    }
#else
    // Whether no score of the step is changed, hidden or shown.
    bool plain = STAGE == STAGE_NONE && MASKED == 0u && p.softcap <= 0.0 && p.left < 0 && p.right < 0 &&
                 int(key + KEYS) <= valid && row + ROWS <= p.q_len && (CAUSAL == 0u || int(key + KEYS) <= offset + int(row) + 1);
    if (plain) {
        [[unroll]] for (uint i = 0u; i < OWN; ++i) {
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                scores[i][j] *= p.scale;
            }
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            uint r = row + OWN * ty + i;
            uint n = key + 4u * tx + j;
            float s = scores[i][j] * p.scale;
            show(STAGE_PRODUCT, r, n, s);
            s = capped(s);
            show(STAGE_CAPPED, r, n, s);
            s = masked(s, r < p.q_len && n < p.kv_len ? bias(r, n) : HIDDEN);
            show(STAGE_MASKED, r, n, s);
            scores[i][j] = s;
        }
    }
#endif
}

// The weights of the keys among the LOADED ones from number `part` of a step on, to where they meet their values.
void put_weights(uint part)
{
    if (4u * tx < part || 4u * tx >= part + LOADED) {
        return;
    }
    [[unroll]] for (uint j = 0u; j < 4u; ++j) {
        uint at = WEIGHTS_AT + (4u * tx - part + j) * ROW_LINE;
#if OWN == 2
        if (ty % 2u == 0u) {
            pool[at + ty / 2u].xy = vec2(scores[0][j], scores[1][j]);
        } else {
            pool[at + ty / 2u].zw = vec2(scores[0][j], scores[1][j]);
        }
#else
        [[unroll]] for (uint n = 0u; n < OWN; n += 4u) {
            pool[at + ty * (OWN / 4u) + n / 4u] = vec4(scores[n][j], scores[n + 1u][j], scores[n + 2u][j], scores[n + 3u][j]);
        }
#endif
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
#ifdef PAGED
    head = rest % p.q_heads;
    batch = 0u;
#else
    begin(rest / p.q_heads, rest % p.q_heads);
#endif
    shows = slice == 0u;
    kv = head / p.share;
    col = slice * COLS;
    cols = min(p.v_head - col, COLS);
    q_first = p.q_first + batch * p.q_batch + head * p.q_head;
    k_first = p.k_first + batch * p.k_batch + kv * p.k_head;
    v_first = p.v_first + batch * p.v_batch + kv * p.v_head_step;
#ifndef CODED
    v_first += col;
#endif

    float sums[QUADS][OWN][4];
    float tops[OWN];
    float totals[OWN];    // of the own keys
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        tops[i] = HIDDEN;
        totals[i] = 0.0;
        [[unroll]] for (uint c = 0u; c < QUADS; ++c) {
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                sums[c][i][j] = 0.0;
            }
        }
    }
#ifdef PAGED
    uint count = min(ROWS, p.q_len - row);
    if (t < count) {
        ends[t] = lens[LEN_WORDS * (row + t)];
        texts[t] = lens[LEN_WORDS * (row + t) + 1u];
    }
    barrier();
    to = 0u;
    for (next_text(count); from < count; next_step(count)) {
        uint key = uint(next_key);
#else
    ivec2 range = seen(row, min(row + ROWS, p.q_len));
    if (STAGE != STAGE_NONE) {
        range = ivec2(0, int(p.kv_len));
    }
    for (int first = range.x; first < range.y; first += int(KEYS)) {
        uint key = uint(first);
#endif
        score(key);
        [[unroll]] for (uint i = 0u; i < OWN; ++i) {
            float most = max(max(scores[i][0], scores[i][1]), max(scores[i][2], scores[i][3]));
            parts[(OWN * ty + i) * (ACROSS + 1u) + tx] = most;
        }
        barrier();
        if (t < ROWS) {
            float most = HIDDEN;
            [[unroll]] for (uint n = 0u; n < ACROSS; ++n) {
                most = max(most, parts[t * (ACROSS + 1u) + n]);
            }
            wholes[t] = most;
        }
        barrier();
        // Scores become weights relative to the largest score so far.
        [[unroll]] for (uint i = 0u; i < OWN; ++i) {
            float most = max(tops[i], wholes[OWN * ty + i]);
            float factor = is_hidden(tops[i]) ? 0.0 : exp(tops[i] - most);
            tops[i] = most;
            totals[i] *= factor;
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                scores[i][j] = weight(scores[i][j], most);
                totals[i] += scores[i][j];
            }
            [[unroll]] for (uint c = 0u; c < QUADS; ++c) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    sums[c][i][j] *= factor;
                }
            }
        }
        [[dont_unroll]] for (uint part = 0u; part < KEYS; part += LOADED) {
            [[unroll]] for (uint n = 0u; n < V_LOADS; ++n) {
                uint c = t % COLS;
                pool[(t / COLS + THREADS / COLS * n) * COL_LINE + c / 4u][c % 4u] = v_next[n];
            }
            put_weights(part);
            barrier();
            if (part + LOADED < KEYS) {
                fetch_values(key, part + LOADED);
            }
            [[dont_unroll]] for (uint some = 0u; some < LOADED; some += UNROLLED) {
                [[unroll]] for (uint e = 0u; e < UNROLLED; ++e) {
                    uint n = some + e;
                    float left[OWN];
                    read_own(WEIGHTS_AT + n * ROW_LINE, left);
                    [[unroll]] for (uint c = 0u; c < QUADS; ++c) {
                        vec4 right = pool[n * COL_LINE + c * ACROSS + tx];
                        [[unroll]] for (uint i = 0u; i < OWN; ++i) {
                            [[unroll]] for (uint m = 0u; m < 4u; ++m) {
                                uint j = there_and_back(i, m);
                                sums[c][i][j] = fma(left[i], right[j], sums[c][i][j]);
                            }
                        }
                    }
                }
            }
            barrier();
        }
    }
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        parts[(OWN * ty + i) * (ACROSS + 1u) + tx] = totals[i];
    }
    barrier();
    if (t < ROWS) {
        float total = 0.0;
        [[unroll]] for (uint n = 0u; n < ACROSS; ++n) {
            total += parts[t * (ACROSS + 1u) + n];
        }
        wholes[t] = total;
    }
    barrier();
    [[unroll]] for (uint i = 0u; i < OWN; ++i) {
        uint r = row + OWN * ty + i;
        totals[i] = wholes[OWN * ty + i];
        float factor = sink_into(tops[i], totals[i]);
        bool none = is_hidden(tops[i]);
        factor /= totals[i];
        uint to = batch * p.y_batch + head * p.y_head + r * p.y_row + col;
        [[unroll]] for (uint c = 0u; c < QUADS; ++c) {
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                uint d = c * KEYS + 4u * tx + j;
                if (r < p.q_len && d < cols) {
                    y[to + d] = T(none ? 0.0 : sums[c][i][j] * factor);
                }
            }
        }
    }
#ifndef PAGED
    if (STAGE == STAGE_SOFTMAX && shows) {
        // Once more, now that the sums are known.
        for (uint key = 0u; key < p.kv_len; key += KEYS) {
            score(key);
            [[unroll]] for (uint i = 0u; i < OWN; ++i) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    float w = weight(scores[i][j], tops[i]) / totals[i];
                    show(STAGE_SOFTMAX, row + OWN * ty + i, key + 4u * tx + j, is_hidden(tops[i]) ? 0.0 : w);
                }
            }
        }
    }
#endif
}
