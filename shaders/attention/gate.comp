// Activations of two operands: a gate times a value, or a function of the sum with a bias, or the sum.
// variant: f32  T=float
// variant: f16  T=float16_t EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "math.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, KIND, 0u);   // 0 swish(a) * b, 1 gelu(a + b), 2 gelu(a + b) by its approximation through tanh,
                           // 3 a + b

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
    if (KIND == 0u) {
        y[i] = T(u / (1.0 + exp(-p.alpha * u)) * v);
    } else if (KIND == 3u) {
        y[i] = T(u + v);
    } else {
        float s = u + v;
        float part = KIND == 1u ? erf(s * 0.707106781) : tanh_exact(0.797884561 * (s + 0.044715 * s * s * s));
        y[i] = T(0.5 * s * (1.0 + part));
    }
}
