// y[o, k, i] = (x[o, index[k], i] - zero) * scale, where blocks along an axis have one scale and zero point; an
// index out of range reads the nearest element. Codes of less than 8 bits lie in bytes, the first in the lowest bits.
// variant: f32  T=f32      EXT_STORAGE8
// variant: f16  T=f16  EXT_STORAGE8 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, INDEX_WORDS, 2u);  // words of one index, of which the first counts
SPEC(2, uint, BITS, 8u);
SPEC(3, uint, SIGNED, 0u);
SPEC(4, uint, ZERO, 0u);         // whether there are zero points

layout(set = 0, binding = 0, std430) readonly buffer X { uint8_t x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Index { int index[]; };
layout(set = 0, binding = 2, std430) readonly buffer Scales { T scales[]; };
layout(set = 0, binding = 3, std430) readonly buffer Zeros { uint8_t zeros[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint inner;
    uint indices;
    uint size;
    uint q_len, q_inner, q_block;  // the axis of blocks
    uint blocks;                   // along it
    uint last;                     // scales along the last axis
    float zero;                    // where there are no zero points
} p;

float number(uint byte, uint place)
{
    if (BITS < 8u) {
        return float(byte >> place % (8u / BITS) * BITS & (1u << BITS) - 1u);
    }
    return float(SIGNED != 0u ? int(byte << 24u) >> 24 : int(byte));
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint rest = i / p.inner;
    int at = index[rest % p.indices * INDEX_WORDS];
    at = clamp(at < 0 ? at + int(p.size) : at, 0, int(p.size) - 1);
    uint from = (rest / p.indices * p.size + uint(at)) * p.inner + i % p.inner;
    uint place = from / p.q_inner;
    uint scale = (place / p.q_len * p.blocks + place % p.q_len / p.q_block) * p.q_inner + from % p.q_inner;
    float zero = p.zero;
    if (ZERO != 0u) {
        uint per = 8u / BITS;
        uint column = scale % p.last;
        zero = number(uint(zeros[scale / p.last * ((p.last + per - 1u) / per) + column / per]), column);
    }
    float v = number(uint(x[from / (8u / BITS)]), from);
    y[i] = T((v - zero) * float(scales[scale]));
}
