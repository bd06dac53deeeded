// Vector times matrix, y[n] = sum over k of a[k] * b[k][n], for a few rows of A: a work-group sums in parts.
// With B_COLUMNS, columns of B are contiguous and a work-group computes 8 elements, else 32.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "product.glsl"

layout(local_size_x = 256) in;
SPEC(1, uint, B_COLUMNS, 0u);
SPEC(2, uint, BIASED, 0u);
SPEC(3, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { T b[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { T c[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

#define FEW_COLS 8u    // rust: columns of a work-group, where those of B are contiguous
#define MANY_COLS 32u  // rust COLS: columns of a work-group, where rows of B are contiguous
const uint COLS = B_COLUMNS != 0u ? FEW_COLS : MANY_COLS;
const uint PARTS = 256u / COLS;

shared float sums[256];

void main()
{
    uint t = gl_LocalInvocationIndex;
    // Neighbouring invocations read neighbouring elements of B.
    uint col = B_COLUMNS != 0u ? t / PARTS : t % COLS;
    uint part = B_COLUMNS != 0u ? t % PARTS : t / COLS;
    uint n = gl_WorkGroupID.x * COLS + col;
    uint row = gl_WorkGroupID.y;
    uint batch = gl_WorkGroupID.z;
    uint a_at = p.a_first + batch / p.inner * p.a_outer + batch % p.inner * p.a_inner + row * p.a_row;
    uint b_at = p.b_first + batch / p.inner * p.b_outer + batch % p.inner * p.b_inner + n * p.b_col;
    float sum = 0.0;
    if (n < p.n) {
        for (uint k = part; k < p.k; k += PARTS) {
            sum = fma(float(a[a_at + k * p.a_col]), float(b[b_at + k * p.b_row]), sum);
        }
    }
    sums[col * PARTS + part] = sum;
    barrier();
    for (uint step = PARTS / 2u; step > 0u; step /= 2u) {
        if (part < step) {
            sums[col * PARTS + part] += sums[col * PARTS + part + step];
        }
        barrier();
    }
    if (part == 0u && n < p.n) {
        float v = p.alpha * sums[col * PARTS];
        if (BIASED != 0u) {
            v += p.beta * float(c[row * p.c_row + n * p.c_col]);
        }
        y[p.y_first + (batch * p.m + row) * p.n + n] = T(activate(v, ACTIVATION, p.act_a, p.act_b));
    }
}
