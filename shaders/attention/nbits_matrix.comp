// Rows times weights of few bits by cooperative matrices; weights are rounded to float16 in local memory. Rows are of
// float16: those of float32 are rounded before, each with a factor of its own.
// variant: f32_128  T=f32 SIDE=128 EXT_FLOAT16 EXT_INT8 MATRICES SCALED
// variant: f16_128  T=f16 SIDE=128 EXT_FLOAT16 EXT_INT8 MATRICES
// variant: f32_64   T=f32 SIDE=64 EXT_FLOAT16 EXT_INT8 MATRICES SCALED
// variant: f16_64   T=f16 SIDE=64 EXT_FLOAT16 EXT_INT8 MATRICES
// variant: f32_32   T=f32 SIDE=32 EXT_FLOAT16 EXT_INT8 MATRICES SCALED
// variant: f16_32   T=f16 SIDE=32 EXT_FLOAT16 EXT_INT8 MATRICES
#version 450
#include "cooperative.glsl"
#include "types.glsl"
#include "spec.glsl"

LOCAL_SIZE(0, 128);               // all subgroups

#include "nbits.glsl"

SPEC(4, uint, RAISED, 127u);      // 127 + n, where scales times 2^n are numbers of float16

#ifdef SCALED
layout(set = 0, binding = 8, std430) readonly buffer Factors { float factors[]; };  // of the results of each row
#endif

const uint BIASES = 0x64006400u;  // twice 1024: with the bits of a whole number below that it is the sum of both

struct Raw
{
    uvec2 low;    // the codes, as many as BITS says
    uvec2 high;
    T scale;
    T zero;
    uint packed;  // the byte with the zero point
    uint shift;   // where it is in that
};

Raw fetch(uint column, uint k)
{
    Raw raw;
    uint first = column * p.words + k / CODES;
    raw.high = uvec2(0u);
    if (BITS == 2u) {
        raw.low = uvec2(b[first / 2u][first % 2u], 0u);
    } else {
        raw.low = b[first / 2u];
        if (BITS == 8u) {
            raw.high = b[first / 2u + 1u];
        }
    }
    uint block = k >> findLSB(p.block);
    raw.scale = scales[column * p.blocks + block];
    raw.zero = T(0.0);
    raw.packed = 0u;
    raw.shift = 0u;
    if (ZEROS == ZEROS_CODES) {
        raw.packed = uint(zero_codes[column * p.zero_bytes + block * BITS / 8u]);
        raw.shift = block * BITS & 7u;
    } else if (ZEROS == ZEROS_NUMBERS) {
        raw.zero = zeros[column * p.blocks + block];
    }
    return raw;
}

// The weights of codes in the low bits of both halves of a word: those of one word are half its codes apart.
f16vec2 pair(uint word, uint i, f16vec2 zero, f16vec2 scale)
{
    f16vec2 codes = unpackFloat2x16((word >> i * BITS & (MASK | MASK << 16u)) | BIASES);
    if (ZEROS == ZEROS_NUMBERS) {
        codes -= f16vec2(1024.0);
    }
    // Whole numbers: exact.
    return (codes - zero) * scale;
}

// The two weights that follow one another from `first` on.
uint two(f16vec2 first, f16vec2 second, bool upper)
{
    return packFloat2x16(upper ? f16vec2(first.y, second.y) : f16vec2(first.x, second.x));
}

void decode(Raw raw, out uvec4 words[2])
{
    // The largest scale whose weights are numbers of float16.
    float largest = 65504.0 / float(1u << BITS);
    float raised = float(raw.scale) * uintBitsToFloat(RAISED << 23u);
    f16vec2 scale = f16vec2(float16_t(clamp(raised, -largest, largest)));
    if (BOOK != 0u) {
        [[unroll]] for (uint i = 0u; i < 8u; ++i) {
            uint at = 2u * i / CODES;
            uint word = at == 0u ? raw.low.x : at == 1u ? raw.low.y : at == 2u ? raw.high.x : raw.high.y;
            vec2 both = vec2(number(word, 2u * i % CODES), number(word, 2u * i % CODES + 1u));
            words[i / 4u][i % 4u] = packFloat2x16(f16vec2(both) * scale);
        }
        return;
    }
    f16vec2 zero = f16vec2(1024.0 + float(1u << (BITS - 1u)));
    if (ZEROS == ZEROS_CODES) {
        zero = unpackFloat2x16((raw.packed >> raw.shift & MASK) * 0x10001u | BIASES);
    } else if (ZEROS == ZEROS_NUMBERS) {
        zero = f16vec2(float16_t(raw.zero));
    }
    if (BITS == 2u) {
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            f16vec2 first = pair(raw.low.x, 2u * i, zero, scale);
            f16vec2 second = pair(raw.low.x, 2u * i + 1u, zero, scale);
            words[0][i] = two(first, second, false);
            words[1][i] = two(first, second, true);
        }
    } else if (BITS == 4u) {
        [[unroll]] for (uint h = 0u; h < 2u; ++h) {
            [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                f16vec2 first = pair(raw.low[h], 2u * i, zero, scale);
                f16vec2 second = pair(raw.low[h], 2u * i + 1u, zero, scale);
                words[h][i] = two(first, second, false);
                words[h][i + 2u] = two(first, second, true);
            }
        }
    } else {
        [[unroll]] for (uint h = 0u; h < 4u; ++h) {
            uint word = h < 2u ? raw.low[h] : raw.high[h - 2u];
            f16vec2 first = pair(word, 0u, zero, scale);
            f16vec2 second = pair(word, 1u, zero, scale);
            words[h / 2u][h % 2u * 2u] = two(first, second, false);
            words[h / 2u][h % 2u * 2u + 1u] = two(first, second, true);
        }
    }
}

void result(uint r, uint n, float sum)
{
#ifdef SCALED
    sum = sum * uintBitsToFloat(254u - RAISED << 23u) * factors[r];
#endif
    y[r * p.n + n] = T(BIASED != 0u ? sum + float(bias[n]) : sum);
}

#include "coded_matrix.glsl"
