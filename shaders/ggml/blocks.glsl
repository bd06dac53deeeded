// Rows of ggml's blocks, read as they lie in a file. Rows have a multiple of 32 elements, and an even number of bytes unless
// they are of MXFP4.
#ifndef ONEPOOL_BLOCKS_GLSL
#define ONEPOOL_BLOCKS_GLSL

// The numbers are ggml's.
// enum: BlockType
#define BLOCK_TYPE_F32 0u    // single numbers, `float32`
#define BLOCK_TYPE_F16 1u    // single numbers, `float16`
#define BLOCK_TYPE_Q4_0 2u   // 32 codes of 4 bits, a scale
#define BLOCK_TYPE_Q4_1 3u   // 32 codes of 4 bits, a scale and a summand
#define BLOCK_TYPE_Q5_0 6u   // 32 codes of 5 bits, a scale
#define BLOCK_TYPE_Q5_1 7u   // 32 codes of 5 bits, a scale and a summand
#define BLOCK_TYPE_Q8_0 8u   // 32 codes of 8 bits, a scale
#define BLOCK_TYPE_Q2_K 10u  // 256 codes of 2 bits, 16 scales and summands of 4 bits
#define BLOCK_TYPE_Q3_K 11u  // 256 codes of 3 bits, 16 scales of 6 bits
#define BLOCK_TYPE_Q4_K 12u  // 256 codes of 4 bits, 8 scales and summands of 6 bits
#define BLOCK_TYPE_Q5_K 13u  // 256 codes of 5 bits, 8 scales and summands of 6 bits
#define BLOCK_TYPE_Q6_K 14u  // 256 codes of 6 bits, 16 scales of 8 bits
#define BLOCK_TYPE_IQ4_NL 20u  // 32 codes of 4 bits, which a table makes numbers, a scale
#define BLOCK_TYPE_IQ4_XS 23u  // 256 codes of 4 bits, which a table makes numbers, 8 scales of 6 bits
#define BLOCK_TYPE_BF16 30u  // single numbers, `bfloat16`
#define BLOCK_TYPE_MXFP4 39u  // 32 numbers of 4 bits, `float4_e2m1`, a scale of 8 bits, a power of two

SPEC(1, uint, TYPE, 0u);

layout(set = 0, binding = 1, std430) restrict readonly buffer Blocks { uint blocks[]; };
#ifdef GATED
layout(set = 0, binding = 4, std430) restrict readonly buffer OtherBlocks { uint other_blocks[]; };
// Whether rows are those of the second matrix.
bool second = false;

uint blocks_word(uint i)
{
    return second ? other_blocks[i] : blocks[i];
}
#else
uint blocks_word(uint i)
{
    return blocks[i];
}
#endif

// Byte `at`.
uint byte_at(uint at)
{
    return (blocks_word(at / 4u) >> (at % 4u * 8u)) & 255u;
}

// The number at byte `at`, which is even.
float half_at(uint at)
{
    return unpackHalf2x16(blocks_word(at / 4u) >> (at % 4u * 8u)).x;
}

// Four bytes from `at` on, which is even unless blocks have an odd number of bytes.
uint word_at(uint at)
{
    uint word = blocks_word(at / 4u);
    if (at % 4u != 0u) {
        uint bits = TYPE == BLOCK_TYPE_MXFP4 ? at % 4u * 8u : 16u;
        word = (word >> bits) | (blocks_word(at / 4u + 1u) << (32u - bits));
    }
    return word;
}

uvec4 bytes_of(uint word)
{
    return uvec4(word, word >> 8u, word >> 16u, word >> 24u) & 255u;
}

// The number of code `code` of types that have a table, of which a word holds four.
float tabled(uint code)
{
    uvec4 words = uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    if (TYPE == BLOCK_TYPE_MXFP4) {
        // Twice the numbers, so that they are whole.
        words = uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
    }
    uint low = code < 4u ? words.x : words.y;
    uint high = code < 12u ? words.z : words.w;
    uint word = code < 8u ? low : high;
    return float(int(word << (24u - code % 4u * 8u)) >> 24);
}

// Where the block of element `k` begins in the row that begins at byte `row`.
uint block_at(uint row, uint k)
{
    if (TYPE == BLOCK_TYPE_Q2_K) {
        return row + k / 256u * 84u;
    }
    if (TYPE == BLOCK_TYPE_Q3_K) {
        return row + k / 256u * 110u;
    }
    if (TYPE == BLOCK_TYPE_IQ4_XS) {
        return row + k / 256u * 136u;
    }
    if (TYPE == BLOCK_TYPE_Q4_K) {
        return row + k / 256u * 144u;
    }
    if (TYPE == BLOCK_TYPE_Q5_K) {
        return row + k / 256u * 176u;
    }
    if (TYPE == BLOCK_TYPE_Q6_K) {
        return row + k / 256u * 210u;
    }
    uint bytes = 34u;
    if (TYPE == BLOCK_TYPE_Q4_0 || TYPE == BLOCK_TYPE_IQ4_NL) {
        bytes = 18u;
    } else if (TYPE == BLOCK_TYPE_Q4_1) {
        bytes = 20u;
    } else if (TYPE == BLOCK_TYPE_Q5_0) {
        bytes = 22u;
    } else if (TYPE == BLOCK_TYPE_Q5_1) {
        bytes = 24u;
    } else if (TYPE == BLOCK_TYPE_MXFP4) {
        bytes = 17u;
    }
    return row + k / 32u * bytes;
}

// Scale and summand of the 16 elements from `k` on: an element is its code times the scale, plus the summand.
vec2 block_scale(uint row, uint k)
{
    uint at = block_at(row, k);
    if (TYPE == BLOCK_TYPE_F32 || TYPE == BLOCK_TYPE_F16 || TYPE == BLOCK_TYPE_BF16) {
        return vec2(1.0, 0.0);
    }
    if (TYPE == BLOCK_TYPE_Q4_1 || TYPE == BLOCK_TYPE_Q5_1) {
        return unpackHalf2x16(word_at(at));
    }
    if (TYPE == BLOCK_TYPE_Q4_K || TYPE == BLOCK_TYPE_Q5_K) {
        uint part = k % 256u / 32u;
        uint low = byte_at(at + 4u + part % 4u);
        uint high = byte_at(at + 8u + part % 4u);
        uvec2 six = uvec2(low, high) & 63u;
        if (part >= 4u) {
            uint last = byte_at(at + 12u + part % 4u);
            six = uvec2((last & 15u) | (low >> 6u << 4u), (last >> 4u) | (high >> 6u << 4u));
        }
        return unpackHalf2x16(word_at(at)) * vec2(six) * vec2(1.0, -1.0);
    }
    if (TYPE == BLOCK_TYPE_Q2_K) {
        uint both = byte_at(at + k % 256u / 16u);
        return unpackHalf2x16(word_at(at + 80u)) * vec2(both & 15u, both >> 4u) * vec2(1.0, -1.0);
    }
    if (TYPE == BLOCK_TYPE_Q3_K || TYPE == BLOCK_TYPE_IQ4_XS) {
        uint i = k % 256u / 16u;
        uint low = byte_at(at + 96u + i % 8u) >> (i / 8u * 4u) & 15u;
        uint high = byte_at(at + 104u + i % 4u) >> (i / 4u * 2u) & 3u;
        uint scale_at = at + 108u;
        if (TYPE == BLOCK_TYPE_IQ4_XS) {
            uint part = i / 2u;
            low = byte_at(at + 4u + part / 2u) >> (part % 2u * 4u) & 15u;
            high = byte_at(at + 2u + part / 4u) >> (part % 4u * 2u) & 3u;
            scale_at = at;
        }
        return vec2(half_at(scale_at) * (float(low | high << 4u) - 32.0), 0.0);
    }
    if (TYPE == BLOCK_TYPE_Q6_K) {
        int scale = int(byte_at(at + 192u + k % 256u / 16u) << 24u) >> 24;
        return vec2(half_at(at + 208u) * float(scale), 0.0);
    }
    if (TYPE == BLOCK_TYPE_MXFP4) {
        // Half the power of two; the least two are below the normal numbers.
        uint power = byte_at(at);
        return vec2(uintBitsToFloat(power < 2u ? 0x00200000u << power : (power - 1u) << 23u), 0.0);
    }
    return vec2(half_at(at), 0.0);
}

// The codes of the four elements from `k` on.
vec4 block_codes(uint row, uint k)
{
    if (TYPE == BLOCK_TYPE_F32) {
        uint at = row / 4u + k;
        return uintBitsToFloat(uvec4(blocks_word(at), blocks_word(at + 1u), blocks_word(at + 2u), blocks_word(at + 3u)));
    }
    if (TYPE == BLOCK_TYPE_F16 || TYPE == BLOCK_TYPE_BF16) {
        uint at = row / 4u + k / 2u;
        uvec2 words = uvec2(blocks_word(at), blocks_word(at + 1u));
        if (TYPE == BLOCK_TYPE_F16) {
            return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
        }
        uvec4 bits = uvec4(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u);
        return uintBitsToFloat(bits);
    }
    uint at = block_at(row, k);
    uint i = k % 32u;
    if (TYPE == BLOCK_TYPE_Q8_0) {
        uint word = word_at(at + 2u + i);
        return vec4(ivec4(int(word) << 24, int(word) << 16, int(word) << 8, int(word)) >> 24);
    }
    uint nibbles = i / 16u * 4u;
    if (TYPE == BLOCK_TYPE_Q4_0) {
        return vec4(bytes_of(word_at(at + 2u + i % 16u) >> nibbles & 0x0f0f0f0fu)) - 8.0;
    }
    if (TYPE == BLOCK_TYPE_Q4_1) {
        return vec4(bytes_of(word_at(at + 4u + i % 16u) >> nibbles & 0x0f0f0f0fu));
    }
    if (TYPE == BLOCK_TYPE_Q5_0 || TYPE == BLOCK_TYPE_Q5_1) {
        uint first = TYPE == BLOCK_TYPE_Q5_0 ? 2u : 4u;
        uvec4 fifth = uvec4(word_at(at + first)) >> (uvec4(0u, 1u, 2u, 3u) + i) & 1u;
        uvec4 four = bytes_of(word_at(at + first + 4u + i % 16u) >> nibbles & 0x0f0f0f0fu);
        return vec4(four | fifth << 4u) - (TYPE == BLOCK_TYPE_Q5_0 ? 16.0 : 0.0);
    }
    uint part = k % 256u / 32u;
    if (TYPE == BLOCK_TYPE_IQ4_NL || TYPE == BLOCK_TYPE_IQ4_XS || TYPE == BLOCK_TYPE_MXFP4) {
        uint first = TYPE == BLOCK_TYPE_IQ4_XS ? 8u + part * 16u : TYPE == BLOCK_TYPE_IQ4_NL ? 2u : 1u;
        uvec4 four = bytes_of(word_at(at + first + i % 16u) >> nibbles & 0x0f0f0f0fu);
        return vec4(tabled(four.x), tabled(four.y), tabled(four.z), tabled(four.w));
    }
    if (TYPE == BLOCK_TYPE_Q2_K || TYPE == BLOCK_TYPE_Q3_K) {
        uint first = (TYPE == BLOCK_TYPE_Q2_K ? 16u : 32u) + k % 256u / 128u * 32u;
        uint two = word_at(at + first + i) >> (part % 4u * 2u) & 0x03030303u;
        if (TYPE == BLOCK_TYPE_Q2_K) {
            return vec4(bytes_of(two));
        }
        uint high = word_at(at + i) >> part & 0x01010101u;
        return vec4(bytes_of(two | high << 2u)) - 4.0;
    }
    if (TYPE == BLOCK_TYPE_Q6_K) {
        uint half_block = k % 256u / 128u;
        uint low = word_at(at + half_block * 64u + part % 2u * 32u + i) >> (part % 4u / 2u * 4u);
        uint high = word_at(at + 128u + half_block * 32u + i) >> (part % 4u * 2u);
        return vec4(bytes_of((low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4u)) - 32.0;
    }
    uint first = TYPE == BLOCK_TYPE_Q4_K ? 16u : 48u;
    uint codes = word_at(at + first + part / 2u * 32u + i) >> (part % 2u * 4u) & 0x0f0f0f0fu;
    if (TYPE == BLOCK_TYPE_Q5_K) {
        codes |= (word_at(at + 16u + i) >> part & 0x01010101u) << 4u;
    }
    return vec4(bytes_of(codes));
}

#endif
