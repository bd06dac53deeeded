// What the products with experts share. A pair is a token and one of its experts. The weights of an expert are `n`
// rows of `k`: numbers, or with BITS codes of BITS bits in words, in blocks that share a scale and a zero point.
#ifndef ONEPOOL_MOE_GLSL
#define ONEPOOL_MOE_GLSL

SPEC(1, uint, BIASED, 0u);
SPEC(2, uint, BITS, 4u);    // 2, 4 or 8
SPEC(3, uint, ZEROS, 0u);   // whether zero points are given; else the middle code is zero

layout(set = 0, binding = 0, std430) readonly buffer X { S x[]; };
#ifdef CODED
layout(set = 0, binding = 1, std430) readonly buffer W { uint w[]; };
#else
layout(set = 0, binding = 1, std430) readonly buffer W { T w[]; };
#endif
layout(set = 0, binding = 2, std430) readonly buffer Scales { T scales[]; };
layout(set = 0, binding = 3, std430) readonly buffer Codes { uint8_t zero_codes[]; };
layout(set = 0, binding = 4, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 5, std430) readonly buffer Experts { uint experts[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Params
{
    uint pairs;
    uint n, k;
    uint share;         // pairs that read one row of X
    uint words;         // of a row of codes
    uint block;         // codes that share a scale
    uint blocks;        // of one row
    uint zero_rows;     // rows of codes that have one row of packed zero points
    uint zero_bytes;    // of it
    uint tiles;
} p;

#ifdef CODED
// Codes of one word.
#define CODES (32u / BITS)

// Scale and zero point of the block of code `k` of row `row` of all experts.
vec2 block_of(uint row, uint k)
{
    uint block = k / p.block;
    float zero = float(1u << (BITS - 1u));
    if (ZEROS != 0u) {
        uint code = row % p.zero_rows * p.blocks + block;
        uint bits = uint(zero_codes[row / p.zero_rows * p.zero_bytes + code * BITS / 8u]);
        zero = float((bits >> (code * BITS & 7u)) & ((1u << BITS) - 1u));
    }
    return vec2(float(scales[row * p.blocks + block]), zero);
}

float weight(uint word, uint i, vec2 block)
{
    return (float((word >> (i * BITS)) & ((1u << BITS) - 1u)) - block.y) * block.x;
}
#endif

#endif
