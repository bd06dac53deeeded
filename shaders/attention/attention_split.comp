// Attention of few queries to many keys, as in decoding: a work-group does QUERIES queries that read the same keys, and
// one of PARTS parts of those keys. attention_merge.comp makes one of the parts. Vectors are whole groups of four.
// With FRESH the keys and values of the queries' own positions are not in the caches yet: queries and new keys are rotated
// here, and the first work-group that needs a new vector writes it to its row. With JOINED the last work-group that has done
// its part of some keys makes one of the parts, as attention_merge.comp does. With CODED caches are words (coded_rows.glsl), which
// strides of keys and values count.
// variant: f32       T=f32 VEC=vec4
// variant: f32_bool  T=f32 VEC=vec4 BOOL_MASK EXT_INT8
// variant: f16       T=f16 VEC=f16vec4 EXT_STORAGE16
// variant: f16_bool  T=f16 VEC=f16vec4 EXT_STORAGE16 BOOL_MASK EXT_INT8
// variant: f32_fresh T=f32 VEC=vec4 FRESH
// variant: f16_fresh T=f16 VEC=f16vec4 EXT_STORAGE16 FRESH
// variant: f32_fresh_joined T=f32 VEC=vec4 FRESH JOINED
// variant: f16_fresh_joined T=f16 VEC=f16vec4 EXT_STORAGE16 FRESH JOINED
// variant: f32_paged T=f32 VEC=vec4 PAGED
// variant: f16_paged T=f16 VEC=f16vec4 EXT_STORAGE16 PAGED
// variant: f32_coded T=f32 VEC=vec4 CODED
// variant: f16_coded T=f16 VEC=f16vec4 EXT_STORAGE16 CODED
// variant: f32_coded_joined T=f32 VEC=vec4 CODED JOINED
// variant: f16_coded_joined T=f16 VEC=f16vec4 EXT_STORAGE16 CODED JOINED
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 128) in;

layout(set = 0, binding = 0, std430) readonly buffer Q { VEC q[]; };
#ifdef FRESH
layout(set = 0, binding = 1, std430) buffer K { VEC k[]; };
layout(set = 0, binding = 2, std430) buffer V { VEC v[]; };
layout(set = 0, binding = 7, std430) readonly buffer NewK { VEC new_k[]; };
layout(set = 0, binding = 8, std430) readonly buffer NewV { VEC new_v[]; };
layout(set = 0, binding = 9, std430) readonly buffer Cos { T cosines[]; };
layout(set = 0, binding = 10, std430) readonly buffer Sin { T sines[]; };
#define Y_AT 11
#define COUNTERS_AT 12
#elif defined(CODED)
layout(set = 0, binding = 1, std430) readonly buffer K { uint k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { uint v[]; };
layout(set = 0, binding = 7, std430) readonly buffer KScales { float k_scales[]; };
layout(set = 0, binding = 8, std430) readonly buffer VScales { float v_scales[]; };
#define Y_AT 9
#define COUNTERS_AT 10
#else
layout(set = 0, binding = 1, std430) readonly buffer K { VEC k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { VEC v[]; };
#endif
#define SINKS 6
#define PAGES_AT 7
#include "attention.glsl"
#ifdef CODED
#include "coded_rows.glsl"
CODED_GROUP(key_group, k, k_scales, K_CHANNELS, p.head)
CODED_GROUP(value_group, v, v_scales, V_CHANNELS, p.v_head)
#endif
#ifdef JOINED
layout(set = 0, binding = 5, std430) coherent buffer Parts { vec4 parts[]; };
layout(set = 0, binding = Y_AT, std430) writeonly buffer Y { VEC y[]; };
layout(set = 0, binding = COUNTERS_AT, std430) coherent buffer Counters { uint counters[]; };
#else
layout(set = 0, binding = 5, std430) writeonly buffer Parts { vec4 parts[]; };
#endif
SPEC(6, uint, COLS, 16u);     // groups of four in a value, rounded up to a power of two of 1 to 64
SPEC(7, uint, QUERIES, 8u);   // of a work-group, 1 to QUERIES_MAX
SPEC(9, uint, PARTS, 1u);     // of the keys
SPEC(17, uint, KEY_COLS, 64u);  // groups of four in a key, 1 to HEAD_MAX / 4
#ifdef FRESH
SPEC(10, uint, PACKED, 0u);       // whether new keys and values lie behind the queries of their row
SPEC(11, uint, ROTATED, 0u);      // elements of a vector that are
SPEC(12, uint, INTERLEAVED, 0u);  // whether a pair is two neighbours, not one of each half
SPEC(13, uint, TABLE_ROWS, 1u);
#endif

const uint QUERIES_MAX = 8u;  // rust: the most queries of a work-group
const uint KEYS = 256u;       // rust: the most keys of a part
const uint HEAD_MAX = 256u;   // rust: the largest head
const uint LEAST_KEYS = 32u;  // rust: the fewest keys of a part but the last
const uint LANES = 4u;        // invocations that share the product with one key
const uint ABREAST = 128u / LANES;
const uint EACH = 128u / QUERIES_MAX;
const uint QUADS = HEAD_MAX / 4u / LANES;  // the most groups of four of a key that an invocation has
const uint AHEAD = 4u;        // values that are read before their weights are known
const uint JOINED_PARTS = 64u;  // rust: the most parts that the last work-group joins

const uint LINES = QUERIES_MAX / 4u;       // lines of sums at a time

// No larger than they must be: so many work-groups share a processor as their memory fits.
shared vec4 query[QUERIES * KEY_COLS];
shared float scores[QUERIES * KEYS];
shared vec4 sums[LINES][128];

// The row of the result for query `i` of those that read keys `kv`.
uint place(uint kv, uint i)
{
    return (batch * p.q_heads + kv * p.share + i % p.share) * p.q_len + i / p.share;
}

#ifdef FRESH
// The group of four that group `i` of a vector is rotated with.
uint partner(uint i)
{
    uint half_groups = ROTATED / 8u;
    if (INTERLEAVED != 0u || 4u * i >= ROTATED) {
        return i;
    }
    return i < half_groups ? i + half_groups : i - half_groups;
}

// Group `i` of a vector at a position; `other` is its partner.
vec4 rotated(vec4 own, vec4 other, uint i, int position)
{
    if (4u * i >= ROTATED) {
        return own;
    }
    uint pairs = ROTATED / 2u;
    uint row = uint(clamp(position, 0, int(TABLE_ROWS) - 1)) * pairs;
    if (INTERLEAVED != 0u) {
        row += 2u * i;
        vec2 c = vec2(float(cosines[row]), float(cosines[row + 1u]));
        vec2 s = vec2(float(sines[row]), float(sines[row + 1u]));
        return vec4(c.x * own.x - s.x * own.y, s.x * own.x + c.x * own.y, c.y * own.z - s.y * own.w, s.y * own.z + c.y * own.w);
    }
    bool second = 4u * i >= pairs;
    row += second ? 4u * i - pairs : 4u * i;
    vec4 c = vec4(float(cosines[row]), float(cosines[row + 1u]), float(cosines[row + 2u]), float(cosines[row + 3u]));
    vec4 s = vec4(float(sines[row]), float(sines[row + 1u]), float(sines[row + 2u]), float(sines[row + 3u]));
    return second ? s * other + c * own : c * own - s * other;
}

// Where the new vector of row `row` begins, of keys (`part` is 0) or values (1).
uint fresh_at(uint part, uint kv, uint row)
{
    uint kv_heads = p.q_heads / p.share;
    uint width = PACKED != 0u ? p.q_row : kv_heads * p.head;
    uint before = PACKED != 0u ? p.q_heads + part * kv_heads : 0u;
    return (batch * p.q_len + row) * width + (before + kv) * p.head;
}
#endif

uint kv;
uint first_query;
uint count;    // queries of this work-group
uint first;    // key
uint keys;

vec4 held[QUADS];
int stored;    // the row of the key in `held`

// Reads this invocation's groups of key number `key`, whose row is none where there is no such key.
void fetch_key(uint key, uint k_first)
{
    stored = key < keys ? key_row(first + key) : -1;
    if (stored < 0) {
        return;
    }
    uint from = k_first + uint(stored) * p.k_row;
#ifndef CODED
    from /= 4u;
#endif
#ifdef FRESH
    int row = int(first + key) - offset;
    bool own_row = row >= 0 && row < int(p.q_len);
    uint fresh = own_row ? fresh_at(0u, kv, uint(row)) / 4u : 0u;
    bool writes = own_row && uint(row) * p.share - first_query < count;
#endif
    [[unroll]] for (uint n = 0u; n < QUADS; ++n) {
        uint i = gl_LocalInvocationIndex % LANES + n * LANES;
        if (n * LANES < KEY_COLS && i < KEY_COLS) {
#ifdef FRESH
            if (own_row) {
                held[n] = rotated(vec4(new_k[fresh + i]), vec4(new_k[fresh + partner(i)]), i, int(first + key));
                if (writes) {
                    k[from + i] = VEC(held[n]);
                }
                continue;
            }
#endif
#ifdef CODED
            held[n] = key_group(from, i, kv * p.head);
#else
            held[n] = vec4(k[from + i]);
#endif
        }
    }
}

// Group `col` of the value of key number `key`; 0 where there is none.
vec4 fetch_value(uint key, uint v_first, uint col)
{
    int stored = key < keys && 4u * col < p.v_head ? key_row(first + key) : -1;
    if (stored < 0) {
        return vec4(0.0);
    }
#ifdef CODED
    return value_group(v_first + uint(stored) * p.v_row, col, kv * p.v_head);
#else
    uint at = (v_first + uint(stored) * p.v_row) / 4u + col;
#ifdef FRESH
    int row = int(first + key) - offset;
    if (row >= 0 && row < int(p.q_len)) {
        vec4 own = vec4(new_v[fresh_at(1u, kv, uint(row)) / 4u + col]);
        if (uint(row) * p.share - first_query < count) {
            v[at] = VEC(own);
        }
        return own;
    }
#endif
    return vec4(v[at]);
#endif
}

#ifdef JOINED
shared bool is_last;

// The results of this work-group's queries, once all of its parts are there.
void join_parts(uint counter)
{
    uint t = gl_LocalInvocationIndex;
    // Who counts last sees what the others wrote before.
    memoryBarrierBuffer();
    barrier();
    if (t == 0u) {
        memoryBarrierBuffer();
        is_last = atomicAdd(counters[counter], 1u) + 1u == PARTS;
        if (is_last) {
            atomicExchange(counters[counter], 0u);
        }
        memoryBarrierBuffer();
    }
    barrier();
    if (!is_last) {
        return;
    }
    memoryBarrierBuffer();
    uint quads = p.v_head / 4u;
    uint size = quads + 1u;
    for (uint i = t; i < count * quads; i += 128u) {
        uint n = first_query + i / quads;
        uint from = place(kv, n) * PARTS * size;
        float top = HIDDEN;
        [[unroll]] for (uint begins = 0u; begins < JOINED_PARTS; begins += 8u) {
            if (begins < PARTS) {
                [[unroll]] for (uint part = begins; part < begins + 8u; ++part) {
                    // The last one again where there are fewer.
                    top = max(top, parts[from + min(part, PARTS - 1u) * size].x);
                }
            }
        }
        float total = 0.0;
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint begins = 0u; begins < JOINED_PARTS; begins += 8u) {
            if (begins < PARTS) {
                vec4 shown[8];
                vec4 own[8];
                [[unroll]] for (uint part = 0u; part < 8u; ++part) {
                    uint at = from + min(begins + part, PARTS - 1u) * size;
                    shown[part] = parts[at];
                    own[part] = parts[at + 1u + i % quads];
                }
                [[unroll]] for (uint part = 0u; part < 8u; ++part) {
                    float w = begins + part < PARTS ? weight(shown[part].x, top) : 0.0;
                    // What a part of no keys has here weighs nothing.
                    if (w > 0.0) {
                        total += shown[part].y * w;
                        sum = fma(vec4(w), own[part], sum);
                    }
                }
            }
        }
        head = kv * p.share + n % p.share;
        bool hidden = is_hidden(top);
        float share = sink_into(top, total) / total;
        uint to = batch * p.y_batch + head * p.y_head + n / p.share * p.y_row;
        y[to / 4u + i % quads] = VEC(hidden ? vec4(0.0) : sum * share);
    }
}
#endif

// The part of this work-group.
void attend(uint group)
{
    uint t = gl_LocalInvocationIndex;
    uint each = p.share * p.q_len;
    uint bands = (each + QUERIES - 1u) / QUERIES;
    uint part = group % PARTS;
    uint rest = group / PARTS;
    first_query = rest % bands * QUERIES;
    rest /= bands;
    uint kv_heads = p.q_heads / p.share;
    kv = rest % kv_heads;
    begin(rest / kv_heads, 0u);
    uint k_first = p.k_first + batch * p.k_batch + kv * p.k_head;
    uint v_first = p.v_first + batch * p.v_batch + kv * p.v_head_step;
    count = min(QUERIES, each - first_query);
    // The keys that any of the queries sees, in equal parts.
    ivec2 range = seen(first_query / p.share, (first_query + count - 1u) / p.share + 1u);
    uint all = uint(max(range.y - range.x, 0));
    uint span = max((all + PARTS - 1u) / PARTS, LEAST_KEYS);
    uint begins = min(part * span, all);
    keys = min(span, all - begins);
    first = uint(range.x) + begins;
    uint size = p.v_head / 4u + 1u;
    if (keys == 0u) {
        // The merge skips sums of a part without weights.
        for (uint n = t; n < count; n += 128u) {
            parts[(place(kv, first_query + n) * PARTS + part) * size] = vec4(HIDDEN, 0.0, 0.0, 0.0);
        }
        return;
    }
    fetch_key(t / LANES, k_first);
    uint col = t % COLS;
    uint strip = t / COLS;
    uint strips = 128u / COLS;
    vec4 values[AHEAD];
    [[unroll]] for (uint n = 0u; n < AHEAD; ++n) {
        values[n] = fetch_value(strip + n * strips, v_first, col);
    }
    for (uint i = t; i < count * KEY_COLS; i += 128u) {
        uint n = first_query + i / KEY_COLS;
        uint from = p.q_first + batch * p.q_batch + (kv * p.share + n % p.share) * p.q_head + n / p.share * p.q_row;
#ifdef FRESH
        vec4 own = vec4(q[from / 4u + i % KEY_COLS]);
        vec4 other = vec4(q[from / 4u + partner(i % KEY_COLS)]);
        query[i] = rotated(own, other, i % KEY_COLS, offset + int(n / p.share));
#else
        query[i] = vec4(q[from / 4u + i % KEY_COLS]);
#endif
    }
    barrier();

    uint lane = t % LANES;
    for (uint key = t / LANES; key < (keys + ABREAST - 1u) / ABREAST * ABREAST; key += ABREAST) {
        float own[QUERIES_MAX];
        [[unroll]] for (uint n = 0u; n < QUERIES_MAX; ++n) {
            own[n] = 0.0;
        }
        bool is_stored = stored >= 0;
        if (is_stored) {
            [[unroll]] for (uint h = 0u; h < QUADS; ++h) {
                uint i = lane + h * LANES;
                if (h * LANES < KEY_COLS && i < KEY_COLS) {
                    vec4 quad = held[h];
                    [[unroll]] for (uint n = 0u; n < QUERIES_MAX; ++n) {
                        if (n < QUERIES) {
                            own[n] += dot(query[n * KEY_COLS + i], quad);
                        }
                    }
                }
            }
        }
        fetch_key(key + ABREAST, k_first);
        [[unroll]] for (uint n = 0u; n < LINES; ++n) {
            sums[n][t] = vec4(own[4u * n], own[4u * n + 1u], own[4u * n + 2u], own[4u * n + 3u]);
        }
        barrier();
        // Lane `l` finishes queries `l`, `l + 4`.
        uint from = t - lane;
        [[unroll]] for (uint n = 0u; n < LINES; ++n) {
            uint own_query = 4u * n + lane;
            if (key < keys && own_query < count) {
                float s = sums[n][from][lane] + sums[n][from + 1u][lane] + sums[n][from + 2u][lane] + sums[n][from + 3u][lane];
                uint i = first_query + own_query;
                head = kv * p.share + i % p.share;
                float add = is_stored ? bias(i / p.share, first + key) : HIDDEN;
                scores[own_query * KEYS + key] = masked(capped(s * p.scale), add);
            }
        }
        barrier();
    }

    // Weights relative to the largest score of each query, and their sum: EACH invocations do one query.
    uint own_query = t / EACH;
    bool inside = own_query < count;
    float top = HIDDEN;
    for (uint key = t % EACH; inside && key < keys; key += EACH) {
        top = max(top, scores[own_query * KEYS + key]);
    }
    sums[0][t].x = top;
    barrier();
    for (uint n = 0u; n < EACH; ++n) {
        top = max(top, sums[0][own_query * EACH + n].x);
    }
    float total = 0.0;
    for (uint key = t % EACH; inside && key < keys; key += EACH) {
        float w = weight(scores[own_query * KEYS + key], top);
        scores[own_query * KEYS + key] = w;
        total += w;
    }
    sums[1][t].x = total;
    barrier();
    if (t % EACH == 0u && inside) {
        total = 0.0;
        for (uint n = 0u; n < EACH; ++n) {
            total += sums[1][t + n].x;
        }
        parts[(place(kv, first_query + own_query) * PARTS + part) * size] = vec4(top, total, 0.0, 0.0);
    }

    vec4 result[QUERIES_MAX];
    [[unroll]] for (uint n = 0u; n < QUERIES_MAX; ++n) {
        result[n] = vec4(0.0);
    }
    [[unroll]] for (uint ahead = 0u; ahead < AHEAD; ++ahead) {
        uint key = strip + ahead * strips;
        if (key < keys) {
            vec4 quad = values[ahead];
            [[unroll]] for (uint n = 0u; n < QUERIES_MAX; ++n) {
                if (n < QUERIES && n < count) {
                    result[n] = fma(vec4(scores[n * KEYS + key]), quad, result[n]);
                }
            }
        }
    }
    for (uint key = strip + AHEAD * strips; key < keys; key += strips) {
        vec4 quad = fetch_value(key, v_first, col);
        [[unroll]] for (uint n = 0u; n < QUERIES_MAX; ++n) {
            if (n < QUERIES && n < count) {
                result[n] = fma(vec4(scores[n * KEYS + key]), quad, result[n]);
            }
        }
    }
    [[unroll]] for (uint from = 0u; from < QUERIES; from += LINES) {
        // What was read of `sums` before is done with. With these barriers in a branch PoCL computes something else.
        barrier();
        [[unroll]] for (uint n = 0u; n < LINES; ++n) {
            sums[n][t] = result[from + n];
        }
        barrier();
        for (uint i = t; i < LINES * COLS; i += 128u) {
            uint n = i / COLS;
            uint quad = i % COLS;
            if (from + n < count && 4u * quad < p.v_head) {
                vec4 sum = vec4(0.0);
                for (uint s = 0u; s < strips; ++s) {
                    sum += sums[n][s * COLS + quad];
                }
                parts[(place(kv, first_query + from + n) * PARTS + part) * size + 1u + quad] = sum;
            }
        }
    }
}

void main()
{
    uint group = linear_group();
    if (group >= p.count) {
        return;
    }
    attend(group);
#ifdef JOINED
    join_parts(group / PARTS);
#endif
}
