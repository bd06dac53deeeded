// y = x in another element type: floats to integers are truncated and clamped to the type's range, integers to
// narrower ones lose their upper bits, everything but zero is true.
// variant: f32_f16  S=f32 D=f16:uint16_t C=float FROM_f32 TO_f16 EXT_STORAGE16
// variant: f32_bf16  S=f32 D=bf16 C=float FROM_f32 TO_bf16 EXT_STORAGE16
// variant: f32_f64  S=f32 D=f64 C=float FROM_f32 TO_f64
// variant: f32_i8  S=f32 D=i8 C=float FROM_f32 TO_i8 EXT_STORAGE8
// variant: f32_u8  S=f32 D=u8 C=float FROM_f32 TO_u8 EXT_STORAGE8
// variant: f32_bool  S=f32 D=bool C=float FROM_f32 TO_bool EXT_STORAGE8
// variant: f32_i32  S=f32 D=i32 C=float FROM_f32 TO_i32
// variant: f32_u32  S=f32 D=u32 C=float FROM_f32 TO_u32
// variant: f32_i64  S=f32 D=i64 C=float FROM_f32 TO_i64 EXT_INT64
// variant: f16_f32  S=f16:uint16_t D=f32 C=float FROM_f16 TO_f32 EXT_STORAGE16
// variant: f16_bf16  S=f16:uint16_t D=bf16 C=float FROM_f16 TO_bf16 EXT_STORAGE16
// variant: f16_f64  S=f16:uint16_t D=f64 C=float FROM_f16 TO_f64 EXT_STORAGE16
// variant: f16_i8  S=f16:uint16_t D=i8 C=float FROM_f16 TO_i8 EXT_STORAGE16 EXT_STORAGE8
// variant: f16_u8  S=f16:uint16_t D=u8 C=float FROM_f16 TO_u8 EXT_STORAGE16 EXT_STORAGE8
// variant: f16_bool  S=f16:uint16_t D=bool C=float FROM_f16 TO_bool EXT_STORAGE16 EXT_STORAGE8
// variant: f16_i32  S=f16:uint16_t D=i32 C=float FROM_f16 TO_i32 EXT_STORAGE16
// variant: f16_u32  S=f16:uint16_t D=u32 C=float FROM_f16 TO_u32 EXT_STORAGE16
// variant: f16_i64  S=f16:uint16_t D=i64 C=float FROM_f16 TO_i64 EXT_INT64 EXT_STORAGE16
// variant: bf16_f32  S=bf16 D=f32 C=float FROM_bf16 TO_f32 EXT_STORAGE16
// variant: bf16_f16  S=bf16 D=f16:uint16_t C=float FROM_bf16 TO_f16 EXT_STORAGE16
// variant: bf16_f64  S=bf16 D=f64 C=float FROM_bf16 TO_f64 EXT_STORAGE16
// variant: bf16_i8  S=bf16 D=i8 C=float FROM_bf16 TO_i8 EXT_STORAGE16 EXT_STORAGE8
// variant: bf16_u8  S=bf16 D=u8 C=float FROM_bf16 TO_u8 EXT_STORAGE16 EXT_STORAGE8
// variant: bf16_bool  S=bf16 D=bool C=float FROM_bf16 TO_bool EXT_STORAGE16 EXT_STORAGE8
// variant: bf16_i32  S=bf16 D=i32 C=float FROM_bf16 TO_i32 EXT_STORAGE16
// variant: bf16_u32  S=bf16 D=u32 C=float FROM_bf16 TO_u32 EXT_STORAGE16
// variant: bf16_i64  S=bf16 D=i64 C=float FROM_bf16 TO_i64 EXT_INT64 EXT_STORAGE16
// variant: f64_f32  S=f64 D=f32 C=double FROM_f64 TO_f32
// variant: f64_f16  S=f64 D=f16:uint16_t C=double FROM_f64 TO_f16 EXT_STORAGE16
// variant: f64_bf16  S=f64 D=bf16 C=double FROM_f64 TO_bf16 EXT_STORAGE16
// variant: f64_i8  S=f64 D=i8 C=double FROM_f64 TO_i8 EXT_STORAGE8
// variant: f64_u8  S=f64 D=u8 C=double FROM_f64 TO_u8 EXT_STORAGE8
// variant: f64_bool  S=f64 D=bool C=double FROM_f64 TO_bool EXT_STORAGE8
// variant: f64_i32  S=f64 D=i32 C=double FROM_f64 TO_i32
// variant: f64_u32  S=f64 D=u32 C=double FROM_f64 TO_u32
// variant: f64_i64  S=f64 D=i64 C=double FROM_f64 TO_i64 EXT_INT64
// variant: i8_f32  S=i8 D=f32 C=int FROM_i8 TO_f32 EXT_STORAGE8
// variant: i8_f16  S=i8 D=f16:uint16_t C=int FROM_i8 TO_f16 EXT_STORAGE16 EXT_STORAGE8
// variant: i8_bf16  S=i8 D=bf16 C=int FROM_i8 TO_bf16 EXT_STORAGE16 EXT_STORAGE8
// variant: i8_f64  S=i8 D=f64 C=int FROM_i8 TO_f64 EXT_STORAGE8
// variant: i8_u8  S=i8 D=u8 C=int FROM_i8 TO_u8 EXT_STORAGE8
// variant: i8_bool  S=i8 D=bool C=int FROM_i8 TO_bool EXT_STORAGE8
// variant: i8_i32  S=i8 D=i32 C=int FROM_i8 TO_i32 EXT_STORAGE8
// variant: i8_u32  S=i8 D=u32 C=int FROM_i8 TO_u32 EXT_STORAGE8
// variant: i8_i64  S=i8 D=i64 C=int FROM_i8 TO_i64 EXT_INT64 EXT_STORAGE8
// variant: u8_f32  S=u8 D=f32 C=uint FROM_u8 TO_f32 EXT_STORAGE8
// variant: u8_f16  S=u8 D=f16:uint16_t C=uint FROM_u8 TO_f16 EXT_STORAGE16 EXT_STORAGE8
// variant: u8_bf16  S=u8 D=bf16 C=uint FROM_u8 TO_bf16 EXT_STORAGE16 EXT_STORAGE8
// variant: u8_f64  S=u8 D=f64 C=uint FROM_u8 TO_f64 EXT_STORAGE8
// variant: u8_i8  S=u8 D=i8 C=uint FROM_u8 TO_i8 EXT_STORAGE8
// variant: u8_bool  S=u8 D=bool C=uint FROM_u8 TO_bool EXT_STORAGE8
// variant: u8_i32  S=u8 D=i32 C=uint FROM_u8 TO_i32 EXT_STORAGE8
// variant: u8_u32  S=u8 D=u32 C=uint FROM_u8 TO_u32 EXT_STORAGE8
// variant: u8_i64  S=u8 D=i64 C=uint FROM_u8 TO_i64 EXT_INT64 EXT_STORAGE8
// variant: bool_f32  S=bool D=f32 C=uint FROM_bool TO_f32 EXT_STORAGE8
// variant: bool_f16  S=bool D=f16:uint16_t C=uint FROM_bool TO_f16 EXT_STORAGE16 EXT_STORAGE8
// variant: bool_bf16  S=bool D=bf16 C=uint FROM_bool TO_bf16 EXT_STORAGE16 EXT_STORAGE8
// variant: bool_f64  S=bool D=f64 C=uint FROM_bool TO_f64 EXT_STORAGE8
// variant: bool_i8  S=bool D=i8 C=uint FROM_bool TO_i8 EXT_STORAGE8
// variant: bool_u8  S=bool D=u8 C=uint FROM_bool TO_u8 EXT_STORAGE8
// variant: bool_i32  S=bool D=i32 C=uint FROM_bool TO_i32 EXT_STORAGE8
// variant: bool_u32  S=bool D=u32 C=uint FROM_bool TO_u32 EXT_STORAGE8
// variant: bool_i64  S=bool D=i64 C=uint FROM_bool TO_i64 EXT_INT64 EXT_STORAGE8
// variant: i32_f32  S=i32 D=f32 C=int FROM_i32 TO_f32
// variant: i32_f16  S=i32 D=f16:uint16_t C=int FROM_i32 TO_f16 EXT_STORAGE16
// variant: i32_bf16  S=i32 D=bf16 C=int FROM_i32 TO_bf16 EXT_STORAGE16
// variant: i32_f64  S=i32 D=f64 C=int FROM_i32 TO_f64
// variant: i32_i8  S=i32 D=i8 C=int FROM_i32 TO_i8 EXT_STORAGE8
// variant: i32_u8  S=i32 D=u8 C=int FROM_i32 TO_u8 EXT_STORAGE8
// variant: i32_bool  S=i32 D=bool C=int FROM_i32 TO_bool EXT_STORAGE8
// variant: i32_u32  S=i32 D=u32 C=int FROM_i32 TO_u32
// variant: i32_i64  S=i32 D=i64 C=int FROM_i32 TO_i64 EXT_INT64
// variant: u32_f32  S=u32 D=f32 C=uint FROM_u32 TO_f32
// variant: u32_f16  S=u32 D=f16:uint16_t C=uint FROM_u32 TO_f16 EXT_STORAGE16
// variant: u32_bf16  S=u32 D=bf16 C=uint FROM_u32 TO_bf16 EXT_STORAGE16
// variant: u32_f64  S=u32 D=f64 C=uint FROM_u32 TO_f64
// variant: u32_i8  S=u32 D=i8 C=uint FROM_u32 TO_i8 EXT_STORAGE8
// variant: u32_u8  S=u32 D=u8 C=uint FROM_u32 TO_u8 EXT_STORAGE8
// variant: u32_bool  S=u32 D=bool C=uint FROM_u32 TO_bool EXT_STORAGE8
// variant: u32_i32  S=u32 D=i32 C=uint FROM_u32 TO_i32
// variant: u32_i64  S=u32 D=i64 C=uint FROM_u32 TO_i64 EXT_INT64
// variant: i64_f32  S=i64 D=f32 C=int64_t FROM_i64 TO_f32 EXT_INT64
// variant: i64_f16  S=i64 D=f16:uint16_t C=int64_t FROM_i64 TO_f16 EXT_INT64 EXT_STORAGE16
// variant: i64_bf16  S=i64 D=bf16 C=int64_t FROM_i64 TO_bf16 EXT_INT64 EXT_STORAGE16
// variant: i64_f64  S=i64 D=f64 C=int64_t FROM_i64 TO_f64 EXT_INT64
// variant: i64_i8  S=i64 D=i8 C=int64_t FROM_i64 TO_i8 EXT_INT64 EXT_STORAGE8
// variant: i64_u8  S=i64 D=u8 C=int64_t FROM_i64 TO_u8 EXT_INT64 EXT_STORAGE8
// variant: i64_bool  S=i64 D=bool C=int64_t FROM_i64 TO_bool EXT_INT64 EXT_STORAGE8
// variant: i64_i32  S=i64 D=i32 C=int64_t FROM_i64 TO_i32 EXT_INT64
// variant: i64_u32  S=i64 D=u32 C=int64_t FROM_i64 TO_u32 EXT_INT64
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "half.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, BOUNDED, 0u);   // whether numbers beyond the range of float16 become representatives inside it

layout(set = 0, binding = 0, std430) readonly buffer X { S x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { D y[]; };

layout(push_constant) uniform Params
{
    uint n;
} p;

#if defined(FROM_f32) || defined(FROM_f16) || defined(FROM_bf16) || defined(FROM_f64)
#define FROM_FLOAT
#endif

C load(uint i)
{
#ifdef FROM_f16
    return unpackHalf2x16(uint(x[i])).x;
#elif defined(FROM_bf16)
    return uintBitsToFloat(uint(x[i]) << 16);
#else
    return C(x[i]);
#endif
}

// v truncated, within [low, high]; `over` is the first number above the type's range.
#ifdef FROM_FLOAT
#define TO_INT(TYPE, v, low, over, high) \
    ((v) >= C(over) ? TYPE(high) : ((v) > C(low) ? TYPE(v) : ((v) <= C(low) ? TYPE(low) : TYPE(0))))
#else
#define TO_INT(TYPE, v, low, over, high) TYPE(v)
#endif

// A float that rounds as v does: v itself, or a neighbour whose last bit is odd.
#if (defined(TO_f16) || defined(TO_bf16)) && defined(FROM_f64)
float once(double v)
{
    float f = float(v);
    double back = double(f);
    if (back == v) {
        return f;
    }
    uint bits = floatBitsToUint(f);
    return uintBitsToFloat((abs(back) > abs(v) ? bits - 1u : bits) | 1u);
}
#elif defined(TO_bf16) && (defined(FROM_i32) || defined(FROM_u32) || defined(FROM_i64))
float once(C v)
{
#ifdef FROM_i64
    uint64_t size = v < 0 ? uint64_t(0) - uint64_t(v) : uint64_t(v);
    uint upper = uint(size >> 32);
    int top = upper != 0u ? 32 + findMSB(upper) : findMSB(uint(size));
#else
    uint size = v < 0 ? 0u - uint(v) : uint(v);
    int top = findMSB(size);
#endif
    // The upper 24 bits, which a float holds, and whether any lower bit is set.
    int shift = max(top - 23, 0);
    uint held = uint(size >> shift);
    uint rest = (size >> shift) << shift != size ? 1u : 0u;
    float f = float(held | rest) * uintBitsToFloat(uint(127 + shift) << 23);
    return v < 0 ? -f : f;
}
#else
#define once(v) float(v)
#endif

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    C v = load(i);
#if defined(TO_f32) || defined(TO_f64)
    y[i] = D(v);
#elif defined(TO_f16)
#ifdef FROM_f32
    // Infinities and NaN have a larger exponent; 65504 is 0x477fe000.
    uint size = floatBitsToUint(v) & 0x7fffffffu;
    if (BOUNDED != 0u && size > 0x477fe000u && size < 0x7f800000u) {
        v = v < 0.0 ? -32768.0 : 32768.0;
    }
#endif
    y[i] = uint16_t(half_bits(once(v)));
#elif defined(TO_bf16)
    y[i] = uint16_t(bfloat_bits(once(v)));
#elif defined(TO_i8)
    y[i] = D(TO_INT(int, v, -128, 128, 127));
#elif defined(TO_u8)
    y[i] = D(TO_INT(uint, v, 0, 256, 255));
#elif defined(TO_i32)
    y[i] = TO_INT(int, v, 0x80000000, 2147483648.0, 0x7fffffff);
#elif defined(TO_u32)
    y[i] = TO_INT(uint, v, 0, 4294967296.0, 0xffffffffu);
#elif defined(TO_i64)
    y[i] = TO_INT(int64_t, v, 0x8000000000000000L, 9223372036854775808.0, 0x7fffffffffffffffL);
#elif defined(TO_bool)
    y[i] = D(v != C(0) ? 1u : 0u);
#endif
}
