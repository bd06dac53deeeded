// New keys and values go to their rows of caches of codes (coded_rows.glsl); keys and queries are rotated before, or neither.
// An invocation makes one word of codes. Rows that a cache does not have are not written.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "half.glsl"
#include "quotient.glsl"
#include "coded_rows.glsl"

layout(local_size_x = 128) in;
SPEC(1, uint, INTERLEAVED, 0u);  // whether a pair is two neighbours, not one of each half
SPEC(2, uint, FROM_ZERO, 0u);    // whether the new rows are the first ones, not those up to the last of each sequence

const uint PER = 32u / CODE_BITS;   // elements of a word of codes
const uint LANES = CODE_BLOCK / PER;  // invocations of a block

layout(set = 0, binding = 0, std430) readonly buffer Q { T q[]; };
layout(set = 0, binding = 1, std430) readonly buffer K { T k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { T v[]; };
layout(set = 0, binding = 3, std430) readonly buffer Cos { T cosines[]; };
layout(set = 0, binding = 4, std430) readonly buffer Sin { T sines[]; };
layout(set = 0, binding = 5, std430) readonly buffer Last { int last[]; };
layout(set = 0, binding = 6, std430) readonly buffer KScales { float k_scales[]; };
layout(set = 0, binding = 7, std430) readonly buffer VScales { float v_scales[]; };
layout(set = 0, binding = 8, std430) writeonly buffer Keys { uint keys[]; };
layout(set = 0, binding = 9, std430) writeonly buffer Values { uint values[]; };
layout(set = 0, binding = 10, std430) writeonly buffer Turned { T turned[]; };

layout(push_constant) uniform Params
{
    uint groups;
    uint batch;
    uint queries;         // heads of queries, 0 where they are not rotated
    uint kv_heads, len, head;
    uint lanes;           // invocations of a vector, a multiple of those of two blocks
    uint rotated;         // elements of a vector that are
    uint table_rows;
    uint q_first, q_batch, q_head, q_row;
    uint k_first, k_batch, k_head, k_row;
    uint v_first, v_batch, v_head, v_row;
    uint rows, row_words; // of the caches
} p;

#define MOST_PER 8u

// The largest number of each invocation, with its sign.
shared float largest[128];

float given(uint part, uint at)
{
    return part == 0u ? float(k[at]) : part == 1u ? float(v[at]) : float(q[at]);
}

// Element `e` of a vector of queries or keys at a position.
float rotated(uint part, uint from, uint e, int position)
{
    float own = given(part, from + e);
    if (e >= p.rotated) {
        return own;
    }
    uint row = uint(clamp(position, 0, int(p.table_rows) - 1));
    uint pairs = p.rotated / 2u;
    uint pair = INTERLEAVED != 0u ? e / 2u : e % pairs;
    bool second = INTERLEAVED != 0u ? (e & 1u) != 0u : e >= pairs;
    uint partner = INTERLEAVED != 0u ? (e ^ 1u) : (second ? e - pairs : e + pairs);
    float c = float(cosines[row * pairs + pair]);
    float s = float(sines[row * pairs + pair]);
    float other = given(part, from + partner);
    return second ? s * other + c * own : c * own - s * other;
}

// The bits of the scale of the block whose first invocation of the work-group is `first`.
uint scale_bits(uint first)
{
    float most = 0.0;
    for (uint n = first; n < first + CODE_BLOCK / PER; ++n) {
        most = abs(largest[n]) > abs(most) ? largest[n] : most;
    }
    // Of 16 codes one more is negative, so the largest number gets that one.
    float scale = CODE_BITS == 8u ? quotient(abs(most), 127.0) : most / -8.0;
    return half_bits(clamp(scale, -65504.0, 65504.0));
}

// The word of codes of the elements `own` from number `e` on of a vector, whose head begins at channel `first`; `scale` is that of
// its block.
uint codes_of(float own[MOST_PER], uint part, uint first, uint e, float scale)
{
    const int HALF = 1 << (CODE_BITS - 1u);
    uint made = 0u;
    [[unroll]] for (uint n = 0u; n < MOST_PER; ++n) {
        if (n < PER && e + n < p.head) {
            if (BLOCK_SCALES == 0u) {
                uint at = first + e + n;
                scale = part == 0u ? k_scales[K_CHANNELS != 0u ? at : 0u] : v_scales[V_CHANNELS != 0u ? at : 0u];
            }
            float whole = quotient(own[n], scale);
            bool number = (floatBitsToUint(whole) & 0x7fffffffu) <= 0x7f800000u;
            int code = number ? int(clamp(roundEven(whole), float(-HALF), float(HALF - 1))) : 0;
            made |= (CODE_BITS == 8u ? uint(code) & 0xffu : uint(code + HALF)) << (n * CODE_BITS);
        }
    }
    return made;
}

void put(uint part, uint at, uint word)
{
    if (part == 0u) {
        keys[at] = word;
    } else {
        values[at] = word;
    }
}

void main()
{
    uint group = linear_group();
    if (group >= p.groups) {
        return;
    }
    uint t = gl_LocalInvocationIndex;
    uint id = group * 128u + t;
    uint lane = id % p.lanes;
    uint rest = id / p.lanes;
    uint heads = 2u * p.kv_heads + p.queries;
    uint h = rest % heads;
    rest /= heads;
    uint i = rest % p.len;
    uint b = rest / p.len;
    bool inside = b < p.batch && lane * PER < p.head;
    b = min(b, p.batch - 1u);
    // Keys, values, or queries.
    uint part = h < p.kv_heads ? 0u : h < 2u * p.kv_heads ? 1u : 2u;
    h -= part * p.kv_heads;
    int position = FROM_ZERO != 0u ? int(i) : last[b] - int(p.len - 1u) + int(i);
    uint from = part == 0u ? p.k_first + b * p.k_batch + h * p.k_head + i * p.k_row
              : part == 1u ? p.v_first + b * p.v_batch + h * p.v_head + i * p.v_row
                           : p.q_first + b * p.q_batch + h * p.q_head + i * p.q_row;
    float own[MOST_PER];
    float most = 0.0;
    [[unroll]] for (uint n = 0u; n < MOST_PER; ++n) {
        uint e = lane * PER + n;
        own[n] = 0.0;
        if (n < PER && inside && e < p.head) {
            own[n] = part == 1u ? given(part, from + e) : rotated(part, from, e, position);
            most = abs(own[n]) > abs(most) ? own[n] : most;
        }
    }
    largest[t] = most;
    barrier();
    if (part == 2u) {
        uint to = ((b * p.len + i) * p.queries + h) * p.head;
        [[unroll]] for (uint n = 0u; n < MOST_PER; ++n) {
            uint e = lane * PER + n;
            if (n < PER && inside && e < p.head) {
                turned[to + e] = T(own[n]);
            }
        }
    } else if (inside && position >= 0 && position < int(p.rows)) {
        uint to = ((b * p.kv_heads + h) * p.rows + uint(position)) * p.row_words;
        uint bits = BLOCK_SCALES != 0u ? scale_bits(t / LANES * LANES) : 0u;
        uint made = CODE_BITS == 16u ? half_bits(own[0]) | half_bits(own[1]) << 16
                                     : codes_of(own, part, h * p.head, lane * PER, unpackHalf2x16(bits).x);
        put(part, to + lane, made);
        if (BLOCK_SCALES != 0u && lane % (2u * LANES) == 0u) {
            bool has_next = (lane + LANES) * PER < p.head;
            bits |= has_next ? scale_bits(t / LANES * LANES + LANES) << 16 : 0u;
            put(part, to + code_words(p.head) + lane / (2u * LANES), bits);
        }
    }
}
