// Between the products of an expert: a function of the first, times the gated part where there is one.
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "math.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, KIND, 0u);     // 0 relu, 1 gelu by its approximation through tanh, 2 silu, 3 identity, 4 swiglu
SPEC(2, uint, SECOND, 0u);   // the second part: 0 none, 1 every other element, 2 the second half, 3 another tensor

layout(set = 0, binding = 0, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { float b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint len;            // elements of a row of Y
    float alpha, beta;   // of swiglu
    float limit;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint row = i / p.len;
    uint at = i;
    if (SECOND == 1u) {
        at = 2u * i;
    } else if (SECOND == 2u) {
        at = row * 2u * p.len + i % p.len;
    }
    float u = a[at];
    float v = 1.0;
    if (SECOND == 1u) {
        v = a[at + 1u];
    } else if (SECOND == 2u) {
        v = a[at + p.len];
    } else if (SECOND == 3u) {
        v = b[i];
    }
    if (KIND == 0u) {
        u = u > 0.0 ? u : 0.0;
    } else if (KIND == 1u) {
        u = 0.5 * u * (1.0 + tanh_exact(0.797884561 * (u + 0.044715 * u * u * u)));
    } else if (KIND == 2u) {
        u = u / (1.0 + exp(-u));
    } else if (KIND == 4u) {
        u = min(u, p.limit);
        v = clamp(v, -p.limit, p.limit) + p.beta;
        u = u / (1.0 + exp(-p.alpha * u));
    }
    y[i] = u * v;
}
