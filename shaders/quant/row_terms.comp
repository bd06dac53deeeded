// What a product of bytes needs of each row of an operand: the sum of its bytes, its zero point, its scale,
// and the output's scale or zero point.
// variant: b8  EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

// What of the output each row takes along.
// enum: Output
#define OUTPUT_NONE 0u           // nothing
#define OUTPUT_SCALE 1u          // its scale
#define OUTPUT_UNSIGNED_ZERO 2u  // its zero point
#define OUTPUT_SIGNED_ZERO 3u    // its zero point, a signed byte

LOCAL_SIZE(0, 64);
SPEC(1, uint, SIGNED, 0u);      // whether the operand's bytes are signed
SPEC(2, uint, ZEROS, 0u);       // how many zero points there are
SPEC(3, uint, SCALES, 0u);      // how many scales there are
SPEC(4, uint, OUTPUT, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Z { uint8_t zeros[]; };
layout(set = 0, binding = 2, std430) readonly buffer S { float scales[]; };
layout(set = 0, binding = 3, std430) readonly buffer OutScale { float out_scale[]; };
layout(set = 0, binding = 4, std430) readonly buffer OutZero { uint8_t out_zero[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Y { uvec4 y[]; };

layout(push_constant) uniform Params
{
    uint n;             // rows of all matrices
    uint rows, blocks;  // of one matrix
} p;

int byte(uint v, bool is_signed)
{
    return is_signed ? bitfieldExtract(int(v), 0, 8) : int(v);
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i / p.rows * p.rows * p.blocks + i % p.rows;
    ivec4 sums = ivec4(0);
    for (uint b = 0u; b < p.blocks; ++b) {
        ivec4 words = ivec4(x[at + b * p.rows]);
        sums += bitfieldExtract(words, 0, 8) + bitfieldExtract(words, 8, 8) + bitfieldExtract(words, 16, 8)
            + (words >> 24);
    }
    int zero = ZEROS != 0u ? byte(uint(zeros[i % max(ZEROS, 1u)]), SIGNED != 0u) : 0;
    if (SIGNED == 0u) {
        zero -= 128;
    }
    float scale = SCALES != 0u ? scales[i % max(SCALES, 1u)] : 1.0;
    uint last = OUTPUT == OUTPUT_SCALE ? floatBitsToUint(out_scale[0]) : 0u;
    if (OUTPUT > OUTPUT_SCALE) {
        last = uint(byte(uint(out_zero[0]), OUTPUT == OUTPUT_SIGNED_ZERO));
    }
    y[i] = uvec4(uint(sums.x + sums.y + sums.z + sums.w), uint(zero), floatBitsToUint(scale), last);
}
