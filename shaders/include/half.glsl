// binary16 and bfloat16 as bits, for devices without such floats.
#ifndef ONEPOOL_HALF_GLSL
#define ONEPOOL_HALF_GLSL

// The nearest binary16, ties to even, infinity beyond the largest.
uint half_bits(float v)
{
    uint bits = floatBitsToUint(v);
    uint sign = (bits >> 16) & 0x8000u;
    uint size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    if (size >= 0x47800000u) {
        return sign | 0x7c00u;
    }
    if (size < 0x38800000u) {
        // Subnormal: one unit is 2^-24, to which the sum with 1/2 is rounded.
        return sign | (floatBitsToUint(uintBitsToFloat(size) + 0.5) - 0x3f000000u);
    }
    return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13);
}

// The nearest bfloat16, ties to even.
uint bfloat_bits(float v)
{
    uint bits = floatBitsToUint(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bits >> 16) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

#endif
