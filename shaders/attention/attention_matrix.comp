// Attention of many queries by cooperative matrices of 16 x 16 x 16 with sums in float32. A subgroup has 16 queries of its own
// and all keys, or (few) the same queries as the others and a quarter of each step's keys. All but few of the longest vectors
// fit in 32 KiB, which is what AMD's driver for Windows has. Vectors are whole groups of eight, at most HEAD elements.
// Dao et al., "FlashAttention", 2022, algorithm 1, has the softmax. Sums are scaled anew only where a score is much larger than
// those before; else scores become weights where they are, and no row of them is known: shifts of rows and their sums of
// weights are matrices too.
// variant: f16_32        T=f16 HEAD=32 EXT_FLOAT16
// variant: f16_64        T=f16 HEAD=64 EXT_FLOAT16
// variant: f16_128       T=f16 HEAD=128 EXT_FLOAT16
// variant: f16_32_few    T=f16 HEAD=32 FEW EXT_FLOAT16
// variant: f16_64_few    T=f16 HEAD=64 FEW EXT_FLOAT16
// variant: f16_128_few   T=f16 HEAD=128 FEW EXT_FLOAT16
// variant: f16_32_bool        T=f16 HEAD=32 BOOL_MASK EXT_FLOAT16 EXT_INT8
// variant: f16_64_bool        T=f16 HEAD=64 BOOL_MASK EXT_FLOAT16 EXT_INT8
// variant: f16_128_bool       T=f16 HEAD=128 BOOL_MASK EXT_FLOAT16 EXT_INT8
// variant: f16_32_few_bool    T=f16 HEAD=32 FEW BOOL_MASK EXT_FLOAT16 EXT_INT8
// variant: f16_64_few_bool    T=f16 HEAD=64 FEW BOOL_MASK EXT_FLOAT16 EXT_INT8
// variant: f16_128_few_bool   T=f16 HEAD=128 FEW BOOL_MASK EXT_FLOAT16 EXT_INT8
#version 450
#include "cooperative.glsl"
#extension GL_KHR_shader_subgroup_vote : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 128);               // all subgroups

layout(set = 0, binding = 0, std430) readonly buffer Q { uvec4 q[]; };
layout(set = 0, binding = 1, std430) readonly buffer K { uvec4 k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { uvec4 v[]; };
#define SINKS 6
#include "attention.glsl"
layout(set = 0, binding = 5, std430) writeonly buffer Y { f16vec4 y[]; };

#ifdef FEW
const uint SUBS = 4u;             // rust FEW_SUBS: subgroups of a work-group of few
const uint ROWS = 16u;            // rust FEW_ROWS: its queries
const uint KEYS = 64u;
#define SPLIT SUBS
#else
const uint SUBS = 4u;             // rust: subgroups of a work-group
const uint ROWS = 16u * SUBS;
const uint KEYS = 32u;
#define SPLIT 1u
#endif
const uint THREADS = gl_WorkGroupSize.x;
const uint OWN = KEYS / SPLIT;    // keys of a subgroup in one step
#if defined(FEW) && HEAD == 128
#define AHEAD false               // RDNA3 has no registers for what would be loaded ahead
#else
#define AHEAD true
#endif
#define TILES (OWN / 16u)
#define STEPS (HEAD / 16)
const uint WORDS = HEAD / 8u;     // of eight elements, in one vector
const uint LINE = WORDS + 1u;     // the padding keeps lines in different banks
const uint K_AT = 0u;
const uint V_AT = KEYS * LINE;
const uint LOADS = (KEYS * WORDS + THREADS - 1u) / THREADS;
// A line of a subgroup has the weights of its keys in float16; before them, in turn, 16 scores of float32, the largest one
// that each invocation has, and blocks of one number.
const uint OWN_LINE = max(OWN / 8u, 4u) + 1u;
const uint OWN_AT = 2u * KEYS * LINE;
const uint OWN_END = OWN_AT + SUBS * 16u * OWN_LINE;
// What leaves are sums of float32, of so many columns at once: more would take more room than all before.
#define COLS 32
const uint OUT_LINE = COLS / 4u + 1u;
#ifdef PLAIN_MATRICES
const uint Q_AT = OWN_END;        // they are read where they are multiplied
#else
const uint Q_AT = 0u;
#endif

// Keys and values, then the scores of every subgroup; before them the queries, and after them the sums, are in their place.
shared uvec4 tile[max(max(OWN_END, Q_AT + ROWS * LINE), SUBS * 16u * OUT_LINE)];
shared float tops[SUBS * 16u];
shared float totals[SUBS * 16u];
#define TILE_HALVES 8u
#include "matrix.glsl"

#include "attention_matrix.glsl"

uvec4 k_next[LOADS];
uvec4 v_next[LOADS];

// Reads keys and values from `key` on; those from `end` on are 0.
void fetch(uint key, uint end, uint k_first, uint v_first)
{
    // One branch for all loads: those that are guarded one by one wait for one another.
    if (KEYS * WORDS % THREADS == 0u && key + KEYS <= end && p.head == 8u * WORDS && p.v_head == 8u * WORDS) {
        [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
            uint n = gl_LocalInvocationIndex + i * THREADS;
            uint r = key + n / WORDS;
            k_next[i] = k[k_first + r * (p.k_row / 8u) + n % WORDS];
            v_next[i] = v[v_first + r * (p.v_row / 8u) + n % WORDS];
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        uint n = gl_LocalInvocationIndex + i * THREADS;
        uint r = key + n / WORDS;
        uint w = n % WORDS;
        bool inside = r < end && n < KEYS * WORDS;
        k_next[i] = inside && 8u * w < p.head ? k[k_first + r * (p.k_row / 8u) + w] : uvec4(0u);
        v_next[i] = inside && 8u * w < p.v_head ? v[v_first + r * (p.v_row / 8u) + w] : uvec4(0u);
    }
}

void put()
{
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        uint n = gl_LocalInvocationIndex + i * THREADS;
        if (KEYS * WORDS % THREADS == 0u || n < KEYS * WORDS) {
            uint at = n / WORDS * LINE + n % WORDS;
            tile[K_AT + at] = k_next[i];
            tile[V_AT + at] = v_next[i];
        }
    }
}

// The two groups that this invocation has of matrix N of scores. The index is a literal: drivers keep an array that is indexed
// by variables in memory, not in registers.
#define TAKE(N)                                                                                \
    coopMatStore(scores[N], tile, own, OWN_LINE, ROW_MAJOR);                                   \
    wait_for_sums(false);                                                                      \
    weights[2u * N] = scores_at(line, share, i, from + 16u * N, unmasked);                     \
    weights[2u * N + 1u] = scores_at(line, share + shares, i, from + 16u * N, unmasked);       \
    wait_for_sums(false);

void main()
{
    uint group = linear_group();
    if (group >= p.count) {
        return;
    }
    uint bands = (p.q_len + ROWS - 1u) / ROWS;
    // Those that see most keys begin first.
    uint row = (CAUSAL != 0u ? bands - 1u - group % bands : group % bands) * ROWS;
    begin(group / bands / p.q_heads, group / bands % p.q_heads);
    uint kv = head / p.share;
    uint q_first = (p.q_first + batch * p.q_batch + head * p.q_head) / 8u;
    uint k_first = (p.k_first + batch * p.k_batch + kv * p.k_head) / 8u;
    uint v_first = (p.v_first + batch * p.v_batch + kv * p.v_head_step) / 8u;
    ivec2 range = seen(row, min(row + ROWS, p.q_len));
    uint end = uint(max(range.y, range.x));
    uint first_row = SPLIT > 1u ? 0u : 16u * SUBGROUP;
    uint first_key = SPLIT > 1u ? OWN * SUBGROUP : 0u;
    ivec2 own_range = seen(row + first_row, min(row + first_row + 16u, p.q_len));
    if (AHEAD) {
        fetch(uint(range.x), end, k_first, v_first);
    }
    for (uint i = gl_LocalInvocationIndex; i < ROWS * WORDS; i += THREADS) {
        uint r = i / WORDS;
        uint w = i % WORDS;
        bool inside = row + r < p.q_len && 8u * w < p.head;
        tile[Q_AT + r * LINE + w] = inside ? q[q_first + (row + r) * (p.q_row / 8u) + w] : uvec4(0u);
    }
    barrier();
    LEFT queries[STEPS];
    SUMS sums[STEPS];
    [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
        coopMatLoad(queries[s], tile, Q_AT + first_row * LINE + 2u * s, LINE, ROW_MAJOR);
        sums[s] = NO_SUMS;
    }
    barrier();
    // Every row has as many invocations as there are subgroup's invocations for 16.
    uint r = LANE % 16u;
    uint share = LANE / 16u;
    uint shares = LANES / 16u;
    uint i = row + first_row + r;
    uint own = OWN_AT + SUBGROUP * (16u * OWN_LINE);
    uint line = own + r * OWN_LINE;
    float scale = p.scale * LOG2_E;
    float top = HIDDEN;
    SUMS shift = SUMS_OF(HIDDEN);
    SUMS total_of = NO_SUMS;
    for (uint key = uint(range.x); key < end; key += KEYS) {
        if (!AHEAD) {
            fetch(key, end, k_first, v_first);
        }
        put();
        barrier();
        if (AHEAD && key + KEYS < end) {
            fetch(key + KEYS, end, k_first, v_first);
        }
        uint from = key + first_key;
        if (APART && (int(from) >= own_range.y || int(from + OWN) <= own_range.x)) {
            barrier();
            continue;
        }
        SUMS scores[TILES];
        [[unroll]] for (uint n = 0u; n < TILES; ++n) {
            scores[n] = NO_SUMS;
            [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
                RIGHT keys;
                coopMatLoad(keys, tile, K_AT + (first_key + 16u * n) * LINE + 2u * s, LINE, COLUMN_MAJOR);
                scores[n] = coopMatMulAdd(queries[s], keys, scores[n]);
            }
        }
        // Whether every query of the subgroup sees all its keys of this step.
        bool unmasked = MASKED == 0u && p.softcap <= 0.0 && int(from + OWN) <= valid && p.left < 0 && p.right < 0 &&
                        (CAUSAL == 0u || int(from + OWN) <= offset + int(row + first_row) + 1);
        bool low = unmasked;
        [[unroll]] for (uint n = 0u; n < TILES; ++n) {
            [[unroll]] for (uint e = 0u; e < scores[n].length(); ++e) {
                low = low && AT_MOST(scores[n][e] * scale - shift[e], SLACK);
            }
        }
        if (all_of_subgroup(low)) {
            [[unroll]] for (uint n = 0u; n < TILES; ++n) {
                [[unroll]] for (uint e = 0u; e < scores[n].length(); ++e) {
                    scores[n][e] = exp2(scores[n][e] * scale - shift[e]);
                }
                store_halves(scores[n], own + 2u * n, OWN_LINE);
            }
        } else {
            vec4 weights[2 * TILES];
            TAKE(0u)
#ifndef FEW
            TAKE(1u)
#endif
            float most = top;
            [[unroll]] for (uint n = 0u; n < 2u * TILES; ++n) {
                most = max(most, max(max(weights[n].x, weights[n].y), max(weights[n].z, weights[n].w)));
            }
            tile[own + LANE].x = floatBitsToUint(most);
            wait_for_sums(false);
            for (uint n = 0u; n < shares; ++n) {
                most = max(most, uintBitsToFloat(tile[own + 16u * n + r].x));
            }
            wait_for_sums(false);
            float factor = is_hidden(top) ? 0.0 : exp(top - most);
            top = most;
            SUMS factors = rows_of(own, r, share, shares, factor);
            total_of = PRODUCTS(total_of, factors);
            [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
                sums[s] = PRODUCTS(sums[s], factors);
            }
            shift = rows_of(own, r, share, shares, top * LOG2_E);
            [[unroll]] for (uint n = 0u; n < 2u * TILES; ++n) {
                uint w = share + n % 2u * shares;
                if (w < 4u) {
                    vec4 s = vec4(weight(weights[n].x, top), weight(weights[n].y, top), weight(weights[n].z, top), weight(weights[n].w, top));
                    uvec2 packed = uvec2(packHalf2x16(s.xy), packHalf2x16(s.zw));
                    uint at = line + n / 2u * 2u + w / 2u;
                    if (w % 2u == 0u) {
                        tile[at].xy = packed;
                    } else {
                        tile[at].zw = packed;
                    }
                }
            }
        }
        wait_for_sums(false);
        [[unroll]] for (uint n = 0u; n < TILES; ++n) {
            LEFT left;
            coopMatLoad(left, tile, own + 2u * n, OWN_LINE, ROW_MAJOR);
            total_of = ADD_ROWS(left, total_of);
            [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
                RIGHT values;
                coopMatLoad(values, tile, V_AT + (first_key + 16u * n) * LINE + 2u * s, LINE, ROW_MAJOR);
                sums[s] = coopMatMulAdd(left, values, sums[s]);
            }
        }
        barrier();
    }
    coopMatStore(total_of, tile, own, OWN_LINE, ROW_MAJOR);
    wait_for_sums(false);
    float total = uintBitsToFloat(tile[line].x);
    tops[SUBGROUP * 16u + r] = top;
    totals[SUBGROUP * 16u + r] = total;
    barrier();
    // The factor of each subgroup's sums.
    float most = top;
    for (uint s = 0u; s < SPLIT && SPLIT > 1u; ++s) {
        most = max(most, tops[16u * s + r]);
    }
    for (uint s = 0u; s < SPLIT && SPLIT > 1u; ++s) {
        float add = tops[16u * s + r];
        total = (s == 0u ? 0.0 : total) + (is_hidden(add) ? 0.0 : exp(add - most) * totals[16u * s + r]);
    }
    float factor = is_hidden(top) ? 0.0 : exp(top - most);
    factor *= sink_into(most, total);
    barrier();
    totals[SUBGROUP * 16u + r] = is_hidden(most) || factor == 0.0 ? 0.0 : factor / total;
    uint y_first = batch * p.y_batch + head * p.y_head;
    [[unroll]] for (uint first = 0u; first < HEAD; first += COLS) {
        [[unroll]] for (uint s = 0u; s < COLS / 16u; ++s) {
            coopMatStore(sums[first / 16u + s], tile, SUBGROUP * (16u * OUT_LINE) + 4u * s, OUT_LINE, ROW_MAJOR);
        }
        barrier();
        for (uint n = gl_LocalInvocationIndex; n < ROWS * (COLS / 4u); n += THREADS) {
            uint r = n / (COLS / 4u);
            uint c = n % (COLS / 4u);
            vec4 sum = vec4(0.0);
            [[unroll]] for (uint s = 0u; s < SPLIT; ++s) {
                float factor = totals[16u * s + r];
                if (factor != 0.0) {
                    sum += factor * uintBitsToFloat(tile[(16u * s + r) * OUT_LINE + c]);
                }
            }
            if (row + r < p.q_len && first + 4u * c < p.v_head) {
                y[(y_first + (row + r) * p.y_row + first) / 4u + c] = f16vec4(sum);
            }
        }
        barrier();
    }
}
