// Attention of many queries by cooperative matrices, as attention_matrix.comp has it, for devices of many registers. A
// subgroup has 16 queries of its own and all keys, or (two) 32, so that every matrix of keys and values that it loads is a
// factor twice. Vectors are whole groups of eight, at most HEAD elements.
// Streaks of steps that scale no sums anew are a loop of their own: NVIDIA's compiler copies sums that two branches of a loop
// change. All subgroups come to the same barrier equally often, wherever their streaks end.
// variant: f16_64        T=f16 HEAD=64 EXT_FLOAT16
// variant: f16_64_two    T=f16 HEAD=64 TWO EXT_FLOAT16
// variant: f16_128       T=f16 HEAD=128 EXT_FLOAT16
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

const uint SUBS = 4u;             // rust: subgroups of a work-group
#ifdef TWO
#define BLOCKS_OWN 2              // sixteens of queries of a subgroup
#else
#define BLOCKS_OWN 1
#endif
const uint ROWS = 16u * BLOCKS_OWN * SUBS;
#if HEAD > 64
#define KEYS 32
#define BUFFERS 1u                // for keys and values
#else
#define KEYS 16
#define BUFFERS 2u                // they save a barrier
#endif
const uint THREADS = gl_WorkGroupSize.x;
#define TILES (KEYS / 16)
#define STEPS (HEAD / 16)
const uint WORDS = HEAD / 8u;     // of eight elements, in one vector
const uint LINE = WORDS + 1u;     // the padding keeps lines in different banks
const uint K_AT = 0u;
const uint V_AT = KEYS * LINE;
const uint PAIR = 2u * KEYS * LINE;
const uint LOADS = (KEYS * WORDS + THREADS - 1u) / THREADS;
// A line of a subgroup has the weights of its keys in float16; before them, in turn, 16 scores of float32, the largest one
// that each invocation has, and blocks of one number.
const uint OWN_LINE = max(KEYS / 8u, 4u) + 1u;
const uint OWN_AT = BUFFERS * PAIR;
const uint OWN_END = OWN_AT + SUBS * BLOCKS_OWN * 16u * OWN_LINE;
// What leaves are sums of float32, of so many columns at once: more would take more room than all before.
#define COLS 32
const uint OUT_LINE = COLS / 4u + 1u;
#ifdef PLAIN_MATRICES
const uint Q_AT = OWN_END;        // they are read where they are multiplied
const uint Q_ROWS = ROWS;
#else
const uint Q_AT = 0u;
// So many at a time, those of whole subgroups.
const uint Q_ROWS = min(ROWS, OWN_AT / LINE / (16u * BLOCKS_OWN) * (16u * BLOCKS_OWN));
#endif

// Keys and values, then the scores of every subgroup; before them the queries, and after them the sums, are in their place.
shared uvec4 tile[max(max(OWN_END, Q_AT + Q_ROWS * LINE), ROWS * OUT_LINE)];
shared float totals[ROWS];
#define TILE_HALVES 8u
#include "matrix.glsl"

#include "attention_matrix.glsl"

uvec4 k_next[LOADS];
uvec4 v_next[LOADS];

// Reads keys and values from `key` on. In place of those from `end` on, and of elements beyond a vector's, there are others:
// their weights are 0, and no load waits for a condition.
void fetch(uint key, uint end, uint k_first, uint v_first)
{
    uint w = gl_LocalInvocationIndex % WORDS;
    uint k_at = k_first + min(w, p.head / 8u - 1u);
    uint v_at = v_first + min(w, p.v_head / 8u - 1u);
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        uint r = min(key + (gl_LocalInvocationIndex + i * THREADS) / WORDS, max(end, 1u) - 1u);
        k_next[i] = k[k_at + r * (p.k_row / 8u)];
        v_next[i] = v[v_at + r * (p.v_row / 8u)];
    }
}

void put(uint to)
{
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        uint n = gl_LocalInvocationIndex + i * THREADS;
        if (KEYS * WORDS % THREADS == 0u || n < KEYS * WORDS) {
            uint at = to + n / WORDS * LINE + n % WORDS;
            tile[K_AT + at] = k_next[i];
            tile[V_AT + at] = v_next[i];
        }
    }
}

#ifdef PLAIN_MATRICES
#define SAME_PLACES(own) false
#define TO_LEFT(left, sums)
#else
#define SAME_PLACES(own) same_places(own)
#define TO_LEFT(left, sums)                                                     \
    [[unroll]] for (uint e = 0u; e < sums.length() && e < left.length(); ++e) { \
        left[e] = float16_t(sums[e]);                                           \
    }

// Whether every invocation has the same elements of sums as of a left factor, in the same order.
bool same_places(uint own)
{
    for (uint n = LANE; n < 64u; n += LANES) {
        tile[own + n / 4u * OWN_LINE + n % 4u] = floatBitsToUint(vec4(4u * n, 4u * n + 1u, 4u * n + 2u, 4u * n + 3u));
    }
    wait_for_sums(false);
    SUMS sums;
    coopMatLoad(sums, tile, own, OWN_LINE, ROW_MAJOR);
    wait_for_sums(false);
    for (uint n = LANE; n < 32u; n += LANES) {
        vec4 low = vec4(8u * n, 8u * n + 1u, 8u * n + 2u, 8u * n + 3u);
        vec4 high = low + 4.0;
        tile[own + n / 2u * OWN_LINE + n % 2u] = uvec4(packHalf2x16(low.xy), packHalf2x16(low.zw), packHalf2x16(high.xy), packHalf2x16(high.zw));
    }
    wait_for_sums(false);
    LEFT left;
    coopMatLoad(left, tile, own, OWN_LINE, ROW_MAJOR);
    wait_for_sums(false);
    bool same = sums.length() == left.length();
    [[unroll]] for (uint e = 0u; e < sums.length() && e < left.length(); ++e) {
        same = same && float(left[e]) == sums[e];
    }
    return all_of_subgroup(same);
}
#endif

// The two groups that this invocation has of matrix N of scores. The index is a literal: drivers keep an array that is indexed
// by variables in memory, not in registers.
#define TAKE(N)                                                                                \
    coopMatStore(scores[b][N], tile, at, OWN_LINE, ROW_MAJOR);                                 \
    wait_for_sums(false);                                                                      \
    weights[2u * N] = scores_at(line, share, i, from + 16u * N, unmasked);                     \
    weights[2u * N + 1u] = scores_at(line, share + shares, i, from + 16u * N, unmasked);       \
    wait_for_sums(false);

// Adds values with weights `lefts`, from `at` on.
#define ADD_VALUES(at)                                                                         \
    [[unroll]] for (uint n = 0u; n < TILES; ++n) {                                             \
        [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {                                    \
            total_of[b] = ADD_ROWS(lefts[b][n], total_of[b]);                                  \
        }                                                                                      \
        [[unroll]] for (uint s = 0u; s < STEPS; ++s) {                                         \
            RIGHT values;                                                                      \
            coopMatLoad(values, tile, (at) + 16u * n * LINE + 2u * s, LINE, ROW_MAJOR);        \
            [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {                                \
                sums[b][s] = coopMatMulAdd(lefts[b][n], values, sums[b][s]);                   \
            }                                                                                  \
        }                                                                                      \
    }

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
    uint first_row = 16u * BLOCKS_OWN * SUBGROUP;
    ivec2 own_range = seen(row + first_row, min(row + first_row + 16u * BLOCKS_OWN, p.q_len));
    uint next = uint(range.x);
    fetch(next, end, k_first, v_first);
    LEFT queries[BLOCKS_OWN][STEPS];
    SUMS sums[BLOCKS_OWN][STEPS];
    [[unroll]] for (uint first = 0u; first < ROWS; first += Q_ROWS) {
        for (uint i = gl_LocalInvocationIndex; i < Q_ROWS * WORDS; i += THREADS) {
            uint r = first + i / WORDS;
            uint w = i % WORDS;
            bool inside = row + r < p.q_len && r < ROWS && 8u * w < p.head;
            tile[Q_AT + i / WORDS * LINE + w] = inside ? q[q_first + (row + r) * (p.q_row / 8u) + w] : uvec4(0u);
        }
        barrier();
        if (first_row >= first && first_row < first + Q_ROWS) {
            [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
                [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
                    coopMatLoad(queries[b][s], tile, Q_AT + (first_row - first + 16u * b) * LINE + 2u * s, LINE, ROW_MAJOR);
                }
            }
        }
        barrier();
    }
    // Every row has as many invocations as there are subgroup's invocations for 16.
    uint r = LANE % 16u;
    uint share = LANE / 16u;
    uint shares = LANES / 16u;
    uint own = OWN_AT + SUBGROUP * (16u * BLOCKS_OWN * OWN_LINE);
    float scale = p.scale * LOG2_E;
    float top[BLOCKS_OWN];
    SUMS shift[BLOCKS_OWN];
    SUMS total_of[BLOCKS_OWN];
    [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
        [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
            sums[b][s] = NO_SUMS;
        }
        top[b] = HIDDEN;
        shift[b] = SUMS_OF(HIDDEN);
        total_of[b] = NO_SUMS;
    }
    bool same = SAME_PLACES(own);
    // Keys before this one are seen by every query of the subgroup.
    int all_see = CAUSAL == 0u ? valid : min(valid, offset + int(row + first_row) + 1);
    if (MASKED != 0u || p.softcap > 0.0 || p.left >= 0 || p.right >= 0) {
        all_see = 0;
    }
    uint pair = PAIR;
    for (;;) {
        SUMS scores[BLOCKS_OWN][TILES];
        LEFT lefts[BLOCKS_OWN][TILES];
        uint from;
        bool more;
        bool apart = false;
        bool unmasked = false;
        for (;;) {
            more = next < end;
            if (!more) {
                break;
            }
            from = next;
            next += KEYS;
            pair = BUFFERS > 1u ? PAIR - pair : 0u;
            if (BUFFERS == 1u) {
                barrier();
            }
            put(pair);
            barrier();
            if (next < end) {
                fetch(next, end, k_first, v_first);
            }
            apart = APART && (int(from) >= own_range.y || int(from + KEYS) <= own_range.x);
            if (apart) {
                break;
            }
            [[unroll]] for (uint n = 0u; n < TILES; ++n) {
                [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
                    scores[b][n] = NO_SUMS;
                }
                [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
                    RIGHT keys;
                    coopMatLoad(keys, tile, pair + K_AT + 16u * n * LINE + 2u * s, LINE, COLUMN_MAJOR);
                    [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
                        scores[b][n] = coopMatMulAdd(queries[b][s], keys, scores[b][n]);
                    }
                }
            }
            unmasked = int(from + KEYS) <= all_see;
            // Four, so that not every comparison waits for the one before.
            bool low[4] = bool[4](unmasked, true, true, true);
            [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
                [[unroll]] for (uint n = 0u; n < TILES; ++n) {
                    [[unroll]] for (uint e = 0u; e < scores[b][n].length(); ++e) {
                        low[e % 4u] = low[e % 4u] && AT_MOST(scores[b][n][e] * scale - shift[b][e], SLACK);
                    }
                }
            }
            if (!all_of_subgroup(low[0] && low[1] && low[2] && low[3])) {
                break;
            }
            [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
                [[unroll]] for (uint n = 0u; n < TILES; ++n) {
                    [[unroll]] for (uint e = 0u; e < scores[b][n].length(); ++e) {
                        scores[b][n][e] = exp2(scores[b][n][e] * scale - shift[b][e]);
                    }
                }
            }
            if (same) {
                [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
                    [[unroll]] for (uint n = 0u; n < TILES; ++n) {
                        TO_LEFT(lefts[b][n], scores[b][n])
                    }
                }
            } else {
                [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
                    [[unroll]] for (uint n = 0u; n < TILES; ++n) {
                        store_halves(scores[b][n], own + 16u * b * OWN_LINE + 2u * n, OWN_LINE);
                    }
                }
                wait_for_sums(false);
                [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
                    [[unroll]] for (uint n = 0u; n < TILES; ++n) {
                        coopMatLoad(lefts[b][n], tile, own + 16u * b * OWN_LINE + 2u * n, OWN_LINE, ROW_MAJOR);
                    }
                }
            }
            ADD_VALUES(pair + V_AT)
        }
        if (!more) {
            break;
        }
        if (apart) {
            continue;
        }
        [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
            uint at = own + 16u * b * OWN_LINE;
            uint line = at + r * OWN_LINE;
            uint i = row + first_row + 16u * b + r;
            vec4 weights[2 * TILES];
            TAKE(0u)
#if TILES == 2
            TAKE(1u)
#endif
            float most = top[b];
            [[unroll]] for (uint n = 0u; n < 2u * TILES; ++n) {
                most = max(most, max(max(weights[n].x, weights[n].y), max(weights[n].z, weights[n].w)));
            }
            tile[at + LANE].x = floatBitsToUint(most);
            wait_for_sums(false);
            for (uint n = 0u; n < shares; ++n) {
                most = max(most, uintBitsToFloat(tile[at + 16u * n + r].x));
            }
            wait_for_sums(false);
            float factor = is_hidden(top[b]) ? 0.0 : exp(top[b] - most);
            top[b] = most;
            SUMS factors = rows_of(at, r, share, shares, factor);
            total_of[b] = PRODUCTS(total_of[b], factors);
            [[unroll]] for (uint s = 0u; s < STEPS; ++s) {
                sums[b][s] = PRODUCTS(sums[b][s], factors);
            }
            shift[b] = rows_of(at, r, share, shares, most * LOG2_E);
            [[unroll]] for (uint n = 0u; n < 2u * TILES; ++n) {
                uint w = share + n % 2u * shares;
                if (w < 4u) {
                    vec4 s = vec4(weight(weights[n].x, most), weight(weights[n].y, most), weight(weights[n].z, most), weight(weights[n].w, most));
                    uvec2 packed = uvec2(packHalf2x16(s.xy), packHalf2x16(s.zw));
                    uint to = line + n / 2u * 2u + w / 2u;
                    if (w % 2u == 0u) {
                        tile[to].xy = packed;
                    } else {
                        tile[to].zw = packed;
                    }
                }
            }
            wait_for_sums(false);
            [[unroll]] for (uint n = 0u; n < TILES; ++n) {
                coopMatLoad(lefts[b][n], tile, at + 2u * n, OWN_LINE, ROW_MAJOR);
            }
        }
        ADD_VALUES(pair + V_AT)
    }
    barrier();
    [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
        uint at = own + 16u * b * OWN_LINE;
        coopMatStore(total_of[b], tile, at, OWN_LINE, ROW_MAJOR);
        wait_for_sums(false);
        float total = uintBitsToFloat(tile[at + r * OWN_LINE].x);
        float factor = is_hidden(top[b]) ? 0.0 : 1.0;
        factor *= sink_into(top[b], total);
        totals[first_row + 16u * b + r] = is_hidden(top[b]) || factor == 0.0 ? 0.0 : factor / total;
    }
    barrier();
    uint y_first = batch * p.y_batch + head * p.y_head;
    [[unroll]] for (uint first = 0u; first < HEAD; first += COLS) {
        [[unroll]] for (uint b = 0u; b < BLOCKS_OWN; ++b) {
            [[unroll]] for (uint s = 0u; s < COLS / 16u; ++s) {
                coopMatStore(sums[b][first / 16u + s], tile, (first_row + 16u * b) * OUT_LINE + 4u * s, OUT_LINE, ROW_MAJOR);
            }
        }
        barrier();
        for (uint n = gl_LocalInvocationIndex; n < ROWS * (COLS / 4u); n += THREADS) {
            uint r = n / (COLS / 4u);
            uint c = n % (COLS / 4u);
            float factor = totals[r];
            vec4 sum = factor != 0.0 ? factor * uintBitsToFloat(tile[r * OUT_LINE + c]) : vec4(0.0);
            if (row + r < p.q_len && first + 4u * c < p.v_head) {
                y[(y_first + (row + r) * p.y_row + first) / 4u + c] = f16vec4(sum);
            }
        }
        barrier();
    }
}
