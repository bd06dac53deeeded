// The common part of the kernels of scaled dot product attention: sizes, strides, and masking.
// Bindings 0 to 2 are queries, keys and values, declared by the kernels; SINKS is the number of another. With ONLY_SINKS
// there are no masks and no numbers of valid keys. With PAGED keys and values lie in pages of a cache, which a table names,
// and after each number of valid keys comes the row of the table; PAGES_AT is the number of its binding.
#ifndef ONEPOOL_ATTENTION_GLSL
#define ONEPOOL_ATTENTION_GLSL

#include "functions.glsl"

// The scores to store.
// enum: Stage
#define STAGE_NONE 0u     // none
#define STAGE_PRODUCT 1u  // the scaled products
#define STAGE_CAPPED 2u   // those with the soft cap
#define STAGE_MASKED 3u   // those with the mask added
#define STAGE_SOFTMAX 4u  // the probabilities

// A score that takes part in the softmax with no value.
// enum: Sink
#define SINK_NONE 0u   // none
#define SINK_ZERO 1u   // zero
#define SINK_HEADS 2u  // one for each head

SPEC(1, uint, CAUSAL, 0u);
SPEC(2, uint, MASKED, 0u);
SPEC(3, uint, LEN_WORDS, 0u);  // words of one number of valid keys; 0 is none given
SPEC(4, int, LEN_ADD, 0);      // added to it
SPEC(5, uint, STAGE, 0u);
SPEC(8, uint, SINK, 0u);

#ifndef ONLY_SINKS
#ifdef BOOL_MASK
layout(set = 0, binding = 3, std430) readonly buffer Mask { uint8_t mask[]; };
#else
layout(set = 0, binding = 3, std430) readonly buffer Mask { T mask[]; };
#endif
layout(set = 0, binding = 4, std430) readonly buffer Lens { int lens[]; };
#endif
layout(set = 0, binding = SINKS, std430) readonly buffer Sinks { T sinks[]; };

#ifdef PAGED
layout(set = 0, binding = PAGES_AT, std430) readonly buffer Pages { int pages[]; };
SPEC(14, uint, PAGE, 1u);    // rows of a page
SPEC(15, uint, PAGES, 1u);   // pages of a row of the table
SPEC(16, uint, BLOCKS, 1u);  // pages that there are
#endif

layout(push_constant) uniform Params
{
    uint count;                                 // work-groups or invocations
    uint q_len, kv_len, q_heads;
    uint share;                                 // heads of queries that read the same keys
    uint head, v_head;                          // elements of a key and of a value
    uint q_first, q_batch, q_head, q_row;       // strides in elements
    uint k_first, k_batch, k_head, k_row;
    uint v_first, v_batch, v_head_step, v_row;
    uint y_batch, y_head, y_row;
    uint mask_batch, mask_head, mask_row, mask_key;
    uint mask_len;                              // keys that the mask covers; those after are hidden
    float scale, softcap;
    int offset;                                 // position of the first query
    int left, right;                            // keys seen before and after the own position, -1 is all
} p;

#define HIDDEN uintBitsToFloat(0xff800000u)

bool is_hidden(float s)
{
    return floatBitsToUint(s) == 0xff800000u;
}

// Which sequence and head this is; `valid` keys, and the position of the first query.
uint batch;
uint head;
int valid;
int offset;

void begin(uint b, uint h)
{
    batch = b;
    head = h;
    valid = int(p.kv_len);
    offset = p.offset;
#ifndef ONLY_SINKS
    if (LEN_WORDS != 0u) {
        int len = clamp(lens[b * LEN_WORDS], -0x20000000, 0x20000000) + LEN_ADD;
        valid = clamp(len, 0, int(p.kv_len));
        offset = len - int(p.q_len);
    }
#endif
}

// The row of the cache that has key `j`, -1 where no page has it.
int key_row(uint j)
{
#ifdef PAGED
    int page = pages[uint(lens[batch * LEN_WORDS + 1u]) * PAGES + min(j / PAGE, PAGES - 1u)];
    return page >= 0 && page < int(BLOCKS) ? page * int(PAGE) + int(j % PAGE) : -1;
#else
    return int(j);
#endif
}

// The first key that queries from row `i` on see, and after the last that queries before row `to` see.
ivec2 seen(uint i, uint to)
{
    int low = 0;
    int high = valid;
    if (p.left >= 0) {
        low = clamp(offset + int(i) - p.left, 0, valid);
    }
    int last = offset + int(to) - 1;
    if (CAUSAL != 0u) {
        high = clamp(last + 1, 0, high);
    }
    if (p.right >= 0) {
        high = clamp(last + p.right + 1, 0, high);
    }
    return ivec2(low, high);
}

#ifndef ONLY_SINKS
// The summand of the score of query `i` and key `j`; HIDDEN for a hidden key.
float bias(uint i, uint j)
{
    int at = offset + int(i);
    int key = int(j);
    bool inside = key < valid && (CAUSAL == 0u || key <= at) && (p.left < 0 || key >= at - p.left) &&
                  (p.right < 0 || key <= at + p.right);
    if (!inside || (MASKED != 0u && j >= p.mask_len)) {
        return HIDDEN;
    }
    if (MASKED == 0u) {
        return 0.0;
    }
    uint from = batch * p.mask_batch + head * p.mask_head + i * p.mask_row + j * p.mask_key;
#ifdef BOOL_MASK
    return uint(mask[from]) != 0u ? 0.0 : HIDDEN;
#else
    return float(mask[from]);
#endif
}
#endif

float capped(float s)
{
    return p.softcap > 0.0 ? p.softcap * f_tanh(s / p.softcap) : s;
}

// The score plus its summand; hidden whatever the score is, even NaN.
float masked(float s, float add)
{
    return is_hidden(add) ? add : s + add;
}

// exp(s - top), 0 where the key is hidden.
float weight(float s, float top)
{
    return is_hidden(s) ? 0.0 : exp(s - top);
}

// Adds the sink to sums of weights relative to `top`; returns the factor of the sums so far.
float sink_into(inout float top, inout float total)
{
    if (SINK == SINK_NONE) {
        return 1.0;
    }
    float s = SINK == SINK_HEADS ? float(sinks[head]) : 0.0;
    float most = max(top, s);
    float factor = is_hidden(top) ? 0.0 : exp(top - most);
    total = total * factor + weight(s, most);
    top = most;
    return factor;
}

#endif
