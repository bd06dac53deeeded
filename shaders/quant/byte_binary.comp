// Sums or products of the numbers that bytes stand for, as bytes, with broadcasting.
// variant: b8 EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "broadcast.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, PRODUCT, 0);
SPEC(5, uint, A_FLIP, 0);   // mask that makes elements unsigned bytes
SPEC(6, uint, B_FLIP, 0);

layout(set = 0, binding = 0, std430) readonly buffer A { uint8_t a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uint8_t b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uint8_t y[]; };

layout(push_constant) uniform Params
{
    uint n;
    float zeros[2];         // of unsigned bytes
    float factors[2];
    int zero, low, high;    // of the output
    uint sizes[NEST_MAX];
    int a_strides[NEST_MAX];
    int b_strides[NEST_MAX];
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    PLACES(i)
    // Rounded after each step, as the host does.
    precise float left = (float(uint(a[at_a]) ^ A_FLIP) - p.zeros[0]) * p.factors[0];
    precise float right = (float(uint(b[at_b]) ^ B_FLIP) - p.zeros[1]) * p.factors[1];
    precise float product = left * right;
    precise float sum = left + right;
    float v = PRODUCT != 0u ? product : sum;
    int whole = int(clamp(roundEven(v), -65536.0, 65536.0)) + p.zero;
    y[i] = uint8_t(uint(clamp(whole, p.low, p.high)) & 0xffu);
}
