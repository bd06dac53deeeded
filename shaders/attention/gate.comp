// Activations of two operands: a gate times a value, or a function of the sum with a bias, or the sum.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "functions.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, GATED, 0u);        // function(a) * b, else function(a + b)
SPEC(2, uint, ACTIVATION, 0u);   // the function

layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { T b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint len;      // of the part of B that is repeated
    uint first;    // where it begins
    float alpha;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    float u = float(a[i]);
    float v = float(b[p.first + i % p.len]);
    float of = activate(GATED != 0u ? u : u + v, ACTIVATION, p.alpha, 0.0);
    y[i] = T(GATED != 0u ? of * v : of);
}
