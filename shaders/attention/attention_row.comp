// Attention: an invocation does ROWS neighbouring queries of one head and TEXELS texels of the values, KEYS keys at a
// time, whole texels of queries, keys and values at once. For devices whose work-groups share nothing fast.
// variant: f32        T=f32 VEC=vec4
// variant: f32_bool   T=f32 VEC=vec4 BOOL_MASK EXT_INT8
// variant: half       T=f16 VEC=f16vec4 EXT_STORAGE16 HALVES
// variant: half_bool  T=f16 VEC=f16vec4 EXT_STORAGE16 HALVES BOOL_MASK EXT_INT8
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 8);

#ifdef HALVES
layout(set = 0, binding = 0, rgba16f) uniform readonly imageBuffer q;
layout(set = 0, binding = 1, rgba16f) uniform readonly imageBuffer k;
layout(set = 0, binding = 2, rgba16f) uniform readonly imageBuffer v;
#define TEXEL(from, i) imageLoad(from, i)
#else
layout(set = 0, binding = 0) uniform samplerBuffer q;
layout(set = 0, binding = 1) uniform samplerBuffer k;
layout(set = 0, binding = 2) uniform samplerBuffer v;
#define TEXEL(from, i) texelFetch(from, i)
#endif
#define SINKS 7
#include "attention.glsl"
layout(set = 0, binding = 5, std430) writeonly buffer Y { VEC y[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Scores { T shown[]; };
SPEC(6, uint, ROWS, 2u);
SPEC(7, uint, TEXELS, 4u);    // texels of a value that an invocation does

const uint KEYS = 8u;

// Runs a statement for every texel `d`. An array indexed by a variable is in memory on every device, so few are unrolled.
const uint REGISTER_TEXELS = 4u;
#define EACH_TEXEL(WORK)                                \
    if (TEXELS <= REGISTER_TEXELS) {                    \
        [[unroll]] for (uint d = 0u; d < TEXELS; ++d) { \
            WORK;                                       \
        }                                               \
    } else {                                            \
        [[dont_unroll]] for (uint d = 0u; d < TEXELS; ++d) { \
            WORK;                                       \
        }                                               \
    }

uint row;
int q_at[ROWS];
int k_first;
uint part;                    // the first texel of the values
uint texels;                  // how many of TEXELS there are
float scores[ROWS * KEYS];
vec4 sums[ROWS * TEXELS];
float tops[ROWS];
float totals[ROWS];
float factors[ROWS];
int v_at[KEYS];
bool is_last;                 // whether some of the keys are after the valid ones

void show(uint stage, uint r, uint j, float s)
{
    if (STAGE == stage && part == 0u && row + r < p.q_len && j < p.kv_len) {
        shown[((batch * p.q_heads + head) * p.q_len + row + r) * p.kv_len + j] = T(s);
    }
}

// The scores of KEYS keys from `key` on, masks added.
void score(uint key)
{
    vec4 products[ROWS * KEYS / 4u];
    [[unroll]] for (uint s = 0u; s < ROWS * KEYS / 4u; ++s) {
        products[s] = vec4(0.0);
    }
    int k_at[KEYS];
    [[unroll]] for (uint n = 0u; n < KEYS; ++n) {
        // Keys after the last are computed as the last, and hidden.
        k_at[n] = k_first + int(min(key + n, p.kv_len - 1u)) * int(p.k_row / 4u);
    }
    for (int d = 0; d < int(p.head / 4u); ++d) {
        vec4 left[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            left[r] = TEXEL(q, q_at[r] + d);
        }
        [[unroll]] for (uint n = 0u; n < KEYS; ++n) {
            vec4 right = TEXEL(k, k_at[n] + d);
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                products[(r * KEYS + n) / 4u][n % 4u] += dot(left[r], right);
            }
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        [[unroll]] for (uint n = 0u; n < KEYS; ++n) {
            float s = products[(r * KEYS + n) / 4u][n % 4u] * p.scale;
            show(STAGE_PRODUCT, r, key + n, s);
            s = capped(s);
            show(STAGE_CAPPED, r, key + n, s);
            s = masked(s, key + n < p.kv_len ? bias(min(row + r, p.q_len - 1u), key + n) : HIDDEN);
            show(STAGE_MASKED, r, key + n, s);
            scores[r * KEYS + n] = s;
        }
    }
}

void clear(uint d)
{
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        sums[r * TEXELS + d] = vec4(0.0);
    }
}

// Adds texel `d` of the values of KEYS keys from `key` on to the sums.
void add(uint d, uint key)
{
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        sums[r * TEXELS + d] *= factors[r];
    }
    [[unroll]] for (uint n = 0u; n < KEYS; ++n) {
        // Texels after the last are computed as the last, and not stored.
        vec4 right = TEXEL(v, v_at[n] + int(min(d, texels - 1u)));
        // Values after the valid ones may be no numbers.
        right = is_last && int(key + n) >= valid ? vec4(0.0) : right;
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            sums[r * TEXELS + d] = fma(vec4(scores[r * KEYS + n]), right, sums[r * TEXELS + d]);
        }
    }
}

// Writes texel `d` of those of query `r`, which begin at `to`.
void leave(uint to, uint r, uint d, float factor)
{
    if (d < texels) {
        y[to + d] = VEC(is_hidden(tops[r]) ? vec4(0.0) : sums[r * TEXELS + d] * factor);
    }
}

void main()
{
    uint id = linear_id();
    if (id >= p.count) {
        return;
    }
    uint bands = (p.q_len + ROWS - 1u) / ROWS;
    uint parts = (p.v_head / 4u + TEXELS - 1u) / TEXELS;
    row = id % bands * ROWS;
    uint rest = id / bands;
    part = rest % parts * TEXELS;
    rest /= parts;
    begin(rest / p.q_heads, rest % p.q_heads);
    uint kv = head / p.share;
    k_first = int((p.k_first + batch * p.k_batch + kv * p.k_head) / 4u);
    int v_first = int((p.v_first + batch * p.v_batch + kv * p.v_head_step) / 4u);
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        // Queries after the last are computed as the last, and not stored.
        uint i = min(row + r, p.q_len - 1u);
        q_at[r] = int((p.q_first + batch * p.q_batch + head * p.q_head + i * p.q_row) / 4u);
    }
    texels = min(TEXELS, p.v_head / 4u - part);
    v_first += int(part);
    EACH_TEXEL(clear(d))
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        tops[r] = HIDDEN;
        totals[r] = 0.0;
    }
    ivec2 range = seen(row, min(row + ROWS, p.q_len));
    if (STAGE != STAGE_NONE) {
        range = ivec2(0, int(p.kv_len));
    }
    for (int first = range.x; first < range.y; first += int(KEYS)) {
        uint key = uint(first);
        score(key);
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            float top = tops[r];
            [[unroll]] for (uint n = 0u; n < KEYS; ++n) {
                top = max(top, scores[r * KEYS + n]);
            }
            factors[r] = is_hidden(tops[r]) ? 0.0 : exp(tops[r] - top);
            totals[r] *= factors[r];
            [[unroll]] for (uint n = 0u; n < KEYS; ++n) {
                float w = weight(scores[r * KEYS + n], top);
                scores[r * KEYS + n] = w;
                totals[r] += w;
            }
            tops[r] = top;
        }
        is_last = int(key + KEYS) > valid;
        [[unroll]] for (uint n = 0u; n < KEYS; ++n) {
            v_at[n] = v_first + int(min(key + n, p.kv_len - 1u)) * int(p.v_row / 4u);
        }
        EACH_TEXEL(add(d, key))
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        float share = sink_into(tops[r], totals[r]);
        if (row + r < p.q_len) {
            uint to = (batch * p.y_batch + head * p.y_head + (row + r) * p.y_row) / 4u + part;
            float factor = share / totals[r];
            EACH_TEXEL(leave(to, r, d, factor))
        }
    }
    if (STAGE == STAGE_SOFTMAX) {
        // Once more, now that the sums are known.
        for (uint key = 0u; key < p.kv_len; key += KEYS) {
            score(key);
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                [[unroll]] for (uint n = 0u; n < KEYS; ++n) {
                    float w = weight(scores[r * KEYS + n], tops[r]) / totals[r];
                    show(STAGE_SOFTMAX, r, key + n, is_hidden(tops[r]) ? 0.0 : w);
                }
            }
        }
    }
}
