// Weights of few bits: columns of blocks of codes that share a scale and a zero point.
#ifndef ONEPOOL_NBITS_GLSL
#define ONEPOOL_NBITS_GLSL

// How zero points are given.
// enum: Zeros
#define ZEROS_MIDDLE 0u   // the middle code
#define ZEROS_CODES 1u    // packed codes
#define ZEROS_NUMBERS 2u  // numbers

SPEC(1, uint, BITS, 4u);     // 2, 4 or 8
SPEC(2, uint, ZEROS, 0u);
SPEC(3, uint, BIASED, 0u);
SPEC(6, uint, BOOK, 0u);     // whether codes stand for the numbers of a book; zero points are 0 then
SPEC(7, uint, SWAP, 0u);     // 1 where the first of two codes has the higher bits

#ifdef WHOLE_UNITS
layout(set = 0, binding = 0, std430) readonly buffer A { VEC a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uvec4 b[]; };
#elif defined(MATRICES)
layout(set = 0, binding = 0, std430) readonly buffer A { uvec4 a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uvec2 b[]; };
#else
layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uint b[]; };
#endif
layout(set = 0, binding = 2, std430) readonly buffer Scales { T scales[]; };
layout(set = 0, binding = 3, std430) readonly buffer Codes { uint8_t zero_codes[]; };
layout(set = 0, binding = 4, std430) readonly buffer Zeros { T zeros[]; };
layout(set = 0, binding = 5, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 7, std430) readonly buffer Book { float book[]; };
#ifdef GATED
layout(set = 0, binding = 8, std430) readonly buffer OtherB { uvec4 other_b[]; };
layout(set = 0, binding = 9, std430) readonly buffer OtherScales { T other_scales[]; };
layout(set = 0, binding = 10, std430) readonly buffer OtherCodes { uint8_t other_zero_codes[]; };
layout(set = 0, binding = 11, std430) readonly buffer OtherZeros { T other_zeros[]; };
layout(set = 0, binding = 12, std430) readonly buffer OtherBias { T other_bias[]; };
layout(set = 0, binding = 13, std430) readonly buffer Gain { VEC gain[]; };
#elif defined(WHOLE_UNITS)
layout(set = 0, binding = 8, std430) readonly buffer Gain { VEC gain[]; };
layout(set = 0, binding = 9, std430) readonly buffer Summand { T summand[]; };
#endif

layout(push_constant) uniform Params
{
    uint m, n, k;
    uint block;        // codes that share a scale
    uint blocks;       // of one column
    uint words;        // of the codes of one column
    uint zero_bytes;   // of the packed zero points of one column
} p;

const uint CODES = 32u / BITS;   // in one word
const uint MASK = (1u << BITS) - 1u;

// The number of code `i` of a word, before zero point and scale.
float number(uint word, uint i)
{
    uint code = (word >> ((i ^ SWAP) * BITS)) & MASK;
    return BOOK != 0u ? book[code] : float(code);
}

// Scale and zero point of the block that code `k` of a column lies in.
#define BLOCK_OF(NAME, SCALES_OF, CODES_OF, ZEROS_OF)                                          \
    vec2 NAME(uint column, uint k)                                                              \
    {                                                                                           \
        uint block = k / p.block;                                                               \
        float zero = BOOK != 0u ? 0.0 : float(1u << (BITS - 1u));                               \
        if (ZEROS == ZEROS_CODES) {                                                             \
            uint bits = uint(CODES_OF[column * p.zero_bytes + block * BITS / 8u]);              \
            zero = float((bits >> (block * BITS & 7u)) & MASK);                                 \
        } else if (ZEROS == ZEROS_NUMBERS) {                                                    \
            zero = float(ZEROS_OF[column * p.blocks + block]);                                  \
        }                                                                                       \
        return vec2(float(SCALES_OF[column * p.blocks + block]), zero);                         \
    }

BLOCK_OF(block_of, scales, zero_codes, zeros)
#ifdef GATED
BLOCK_OF(other_block_of, other_scales, other_zero_codes, other_zeros)
#endif

#endif
