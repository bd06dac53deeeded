// Product of matrices in tiles, for devices with fast workgroup memory: a work-group computes 64 x 64 elements, or
// (small) 32 x 32 in four slices of k; an invocation 4 x 4.
// variant: f32          T=f32
// variant: f32x4        T=f32 VEC=vec4 OUT4
// variant: f16          T=f16 EXT_STORAGE16
// variant: f16x4        T=f16 VEC=f16vec4 EXT_STORAGE16 OUT4
// variant: f32_small    T=f32 SMALL
// variant: f32x4_small  T=f32 VEC=vec4 SMALL OUT4
// variant: f16_small    T=f16 EXT_STORAGE16 SMALL
// variant: f16x4_small  T=f16 VEC=f16vec4 EXT_STORAGE16 SMALL OUT4
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "product.glsl"

layout(local_size_x = 256) in;
#include "tiles.glsl"

layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { T b[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { T c[]; };
// Rows of whole quads.
#include "parts.glsl"
#define SUMMAND 5
#include "output.glsl"

#include "slices.glsl"

float a_next[LOADS];
float b_next[LOADS];

// Loads the elements of a step. One branch for all: loads that are guarded one by one wait for one another.
void load(uint k0, uint row, uint col, uint a_first, uint b_first)
{
    uint t = gl_LocalInvocationIndex;
    if (row + TILE <= p.m && col + TILE <= p.n && k0 + DEPTH <= p.k) {
        [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
            uvec2 at = place(A_COLUMNS == 0u, t + i * THREADS) + uvec2(row, k0);
            a_next[i] = float(a[a_first + at.x * p.a_row + at.y * p.a_col]);
            at = place(B_COLUMNS != 0u, t + i * THREADS) + uvec2(col, k0);
            b_next[i] = float(b[b_first + at.x * p.b_col + at.y * p.b_row]);
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        uvec2 at = place(A_COLUMNS == 0u, t + i * THREADS) + uvec2(row, k0);
        bool inside = at.x < p.m && at.y < p.k;
        float v = float(a[inside ? a_first + at.x * p.a_row + at.y * p.a_col : 0u]);
        a_next[i] = inside ? v : 0.0;
        at = place(B_COLUMNS != 0u, t + i * THREADS) + uvec2(col, k0);
        inside = at.x < p.n && at.y < p.k;
        v = float(b[inside ? b_first + at.x * p.b_col + at.y * p.b_row : 0u]);
        b_next[i] = inside ? v : 0.0;
    }
}

void put()
{
    uint t = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        put_a(place(A_COLUMNS == 0u, t + i * THREADS), a_next[i]);
        put_b(place(B_COLUMNS != 0u, t + i * THREADS), b_next[i]);
    }
}

void main()
{
    uint batch = batch_of_part();
    uint row = gl_WorkGroupID.y * TILE;
    uint col = gl_WorkGroupID.x * TILE;
    uint a_first = p.a_first + batch / p.inner * p.a_outer + batch % p.inner * p.a_inner;
    uint b_first = p.b_first + batch / p.inner * p.b_outer + batch % p.inner * p.b_inner;

    vec4 sums[4] = {vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0)};
    // Every turn loads one step and sums the step before it.
    uvec2 part = DEPTH * steps_of_part((p.k + DEPTH - 1u) / DEPTH);
    for (uint k0 = part.x; k0 <= part.y; k0 += DEPTH) {
        if (k0 < part.y) {
            load(k0, row, col, a_first, b_first);
        }
        if (k0 > part.x) {
            sum_step(sums);
            barrier();
        }
        if (k0 < part.y) {
            put();
        }
        barrier();
    }
    if (!sum_slices(sums)) {
        return;
    }

    uvec2 at = corner() + uvec2(row, col);
    uint first = PARTS > 1u ? first_of_part(p.m, p.n) : p.y_first + batch * p.m * p.n;
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint r = at.x + i;
#ifdef OUT4
        if (r < p.m && at.y < p.n) {
            uint to = (first + r * p.n + at.y) / 4u;
            if (PARTS > 1u) {
                part_sums[to] = sums[i];
                continue;
            }
            vec4 v = p.alpha * sums[i];
            if (BIASED != 0u) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    v[j] += p.beta * float(c[r * p.c_row + (at.y + j) * p.c_col]);
                }
            }
            y[to] = VEC(activate4(plus_summand(v, to), ACTIVATION, p.act_a, p.act_b));
        }
#else
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            uint n = at.y + j;
            if (r < p.m && n < p.n) {
                uint to = first + r * p.n + n;
                if (PARTS > 1u) {
                    part_sums[to] = sums[i][j];
                    continue;
                }
                float v = p.alpha * sums[i][j];
                if (BIASED != 0u) {
                    v += p.beta * float(c[r * p.c_row + n * p.c_col]);
                }
                y[to] = T(activate(plus_summand(v, to), ACTIVATION, p.act_a, p.act_b));
            }
        }
#endif
    }
}
