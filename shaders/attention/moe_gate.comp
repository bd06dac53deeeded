// Between the products of an expert: a function of the first, times the gated part where there is one.
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "functions.glsl"

// The second part.
// enum: Second
#define SECOND_NONE 0u         // none
#define SECOND_INTERLEAVED 1u  // every other element
#define SECOND_HALVES 2u       // the second half
#define SECOND_THIRD 3u        // another tensor

LOCAL_SIZE(0, 64);
SPEC(1, uint, ACTIVATION, 0u);
SPEC(2, uint, SECOND, 0u);
SPEC(3, uint, LIMITED, 0u);  // whether both parts are clamped, as in SwiGLU

layout(set = 0, binding = 0, std430) readonly buffer A { float a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { float b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint len;            // elements of a row of Y
    float alpha;         // of the function
    float beta, limit;   // of swiglu
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint row = i / p.len;
    uint at = i;
    if (SECOND == SECOND_INTERLEAVED) {
        at = 2u * i;
    } else if (SECOND == SECOND_HALVES) {
        at = row * 2u * p.len + i % p.len;
    }
    float u = a[at];
    float v = 1.0;
    if (SECOND == SECOND_INTERLEAVED) {
        v = a[at + 1u];
    } else if (SECOND == SECOND_HALVES) {
        v = a[at + p.len];
    } else if (SECOND == SECOND_THIRD) {
        v = b[i];
    }
    if (LIMITED != 0u) {
        u = min(u, p.limit);
        v = clamp(v, -p.limit, p.limit) + p.beta;
    }
    y[i] = activate(u, ACTIVATION, p.alpha, 0.0) * v;
}
