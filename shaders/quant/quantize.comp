// y = saturate(round(x / scale) + zero) of bytes, where the scale and the zero point are those of the element's
// place along an axis.
// variant: f32_i8  T=f32 D=i8 EXT_STORAGE8
// variant: f32_u8  T=f32 D=u8 EXT_STORAGE8
// variant: f16_i8  T=f16:uint16_t D=i8 HALF EXT_STORAGE8 EXT_STORAGE16
// variant: f16_u8  T=f16:uint16_t D=u8 HALF EXT_STORAGE8 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "half.glsl"
#include "quotient.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, ZERO, 0u);    // whether there are zero points

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer S { T scales[]; };
layout(set = 0, binding = 2, std430) readonly buffer Z { D zeros[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { D y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint len, inner, block;  // sizes of the axis and of later axes, positions with one scale
    uint steps[3];           // strides of scales: before the axis, along it, after it
    int low, high;
} p;

#ifdef HALF
#define NUMBER(v) unpackHalf2x16(uint(v)).x
#define ROUNDED(v) unpackHalf2x16(half_bits(v)).x
#else
#define NUMBER(v) v
#define ROUNDED(v) v
#endif

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i / p.inner;
    uint scale = at / p.len * p.steps[0] + at % p.len / p.block * p.steps[1] + i % p.inner * p.steps[2];
    float v = NUMBER(x[i]);
    float s = NUMBER(scales[scale]);
    float q = ROUNDED(quotient(v, s));
    int zero = ZERO != 0u ? int(zeros[scale]) : 0;
    int whole = int(clamp(roundEven(q), -65536.0, 65536.0)) + zero;
    y[i] = D(isnan(q) ? 0 : clamp(whole, p.low, p.high));
}
