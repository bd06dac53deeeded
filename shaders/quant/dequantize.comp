// y = (x - zero) * scale, where the scale and the zero point are those of the element's place along an axis.
// variant: i8_f32   S=i8 T=f32 EXT_STORAGE8
// variant: u8_f32   S=u8 T=f32 EXT_STORAGE8
// variant: i32_f32  S=i32 T=f32
// variant: i8_f16   S=i8 T=f16:uint16_t HALF EXT_STORAGE8 EXT_STORAGE16
// variant: u8_f16   S=u8 T=f16:uint16_t HALF EXT_STORAGE8 EXT_STORAGE16
// variant: i32_f16  S=i32 T=f16:uint16_t HALF EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "half.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, ZERO, 0u);    // whether there are zero points

layout(set = 0, binding = 0, std430) readonly buffer X { S x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Scales { T scales[]; };
layout(set = 0, binding = 2, std430) readonly buffer Zeros { S zeros[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint len, inner, block;  // sizes of the axis and of later axes, positions with one scale
    uint steps[3];           // strides of scales: before the axis, along it, after it
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i / p.inner;
    uint scale = at / p.len * p.steps[0] + at % p.len / p.block * p.steps[1] + i % p.inner * p.steps[2];
    float v = float(int(x[i]));
    if (ZERO != 0u) {
        v -= float(int(zeros[scale]));
    }
#ifdef HALF
    y[i] = uint16_t(half_bits(v * unpackHalf2x16(uint(scales[scale])).x));
#else
    y[i] = v * scales[scale];
#endif
}
