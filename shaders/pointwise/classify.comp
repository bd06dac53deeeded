// y = IsNaN(x), or IsInf(x) with the signs that count.
// variant: f32  T=float
// variant: f16  T=float16_t EXT_STORAGE16
// variant: f64  T=double
#version 450
#define EXT_STORAGE8
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "math.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uint8_t y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint nan;
    uint positive;
    uint negative;
} p;

// The bits of v as a float's: NaN and infinities keep their kind and sign.
#ifdef VARIANT_f64
#define C double
uint bits_of(double v)
{
    uvec2 w = unpackDouble2x32(v);
    uint sign = w.y & 0x80000000u;
    uint high = w.y & 0x7fffffffu;
    bool nan = high > 0x7ff00000u || (high == 0x7ff00000u && w.x != 0u);
    return sign | (nan ? 0x7fc00000u : (high == 0x7ff00000u ? 0x7f800000u : 0u));
}
#else
uint bits_of(float v)
{
    return floatBitsToUint(v);
}
#define C float
#endif

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        uint bits = bits_of(C(x[i]));
        uint size = bits & 0x7fffffffu;
        bool yes = p.nan != 0u ? size > 0x7f800000u
                               : size == 0x7f800000u && (bits >> 31 != 0u ? p.negative : p.positive) != 0u;
        y[i] = uint8_t(yes ? 1u : 0u);
    }
}
