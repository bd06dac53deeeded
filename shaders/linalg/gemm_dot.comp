// Product of a few rows with a matrix whose columns are contiguous, read where it lies: an invocation computes
// ROWS x COLS neighbouring elements. It reads four texels of a column together, because columns at distances of powers of
// two drive one another out of the cache. k is a multiple of 4.
// variant: tex   T=float
// variant: half  T=float16_t EXT_STORAGE16 HALVES
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"
#include "rows.glsl"

LOCAL_SIZE(0, 8);
SPEC(1, uint, ROWS, 1u);
SPEC(2, uint, COLS, 4u);
SPEC(3, uint, BIASED, 0u);
SPEC(4, uint, ACTIVATION, 0u);

#ifdef HALVES
layout(set = 0, binding = 0, rgba16f) uniform readonly imageBuffer a;
layout(set = 0, binding = 1, rgba16f) uniform readonly imageBuffer b;
#define A(i) imageLoad(a, i)
#define B(i) imageLoad(b, i)
#else
layout(set = 0, binding = 0) uniform samplerBuffer a;
layout(set = 0, binding = 1) uniform samplerBuffer b;
#define A(i) texelFetch(a, i)
#define B(i) texelFetch(b, i)
#endif
layout(set = 0, binding = 2, std430) readonly buffer C { T c[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

float sums[ROWS * COLS];
vec4 rows[ROWS * 4u];

// Adds the products of `n` texels from `k` on.
void step_of(int a_at[ROWS], int b_at[COLS], int k, uint n)
{
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        [[unroll]] for (uint j = 0u; j < n; ++j) {
            rows[r * 4u + j] = A(a_at[r] + k + int(j));
        }
    }
    [[unroll]] for (uint s = 0u; s < COLS; ++s) {
        vec4 column[4];
        [[unroll]] for (uint j = 0u; j < n; ++j) {
            column[j] = B(b_at[s] + k + int(j));
        }
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            float sum = sums[r * COLS + s];
            [[unroll]] for (uint j = 0u; j < n; ++j) {
                vec4 row = rows[r * 4u + j];
                sum = fma(row.x, column[j].x, sum);
                sum = fma(row.y, column[j].y, sum);
                sum = fma(row.z, column[j].z, sum);
                sum = fma(row.w, column[j].w, sum);
            }
            sums[r * COLS + s] = sum;
        }
    }
}

void main()
{
    uint i = linear_id();
    if (i >= p.count) {
        return;
    }
    uint bands = (p.m + ROWS - 1u) / ROWS;
    uint row = (i % bands) * ROWS;
    i /= bands;
    uint tiles = (p.n + COLS - 1u) / COLS;
    uint col = (i % tiles) * COLS;
    uint batch = i / tiles;

    int a_first = p.a_first + int(batch / p.inner) * p.a_outer + int(batch % p.inner) * p.a_inner;
    int b_first = p.b_first + int(batch / p.inner) * p.b_outer + int(batch % p.inner) * p.b_inner;
    // Rows and columns behind the last are computed as the last, and not stored.
    int a_at[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        a_at[r] = a_first + int(min(row + r, p.m - 1u)) * p.a_row;
    }
    int b_at[COLS];
    [[unroll]] for (uint s = 0u; s < COLS; ++s) {
        b_at[s] = b_first + int(min(col + s, p.n - 1u)) * p.b_row;
    }
    [[unroll]] for (uint s = 0u; s < ROWS * COLS; ++s) {
        sums[s] = 0.0;
    }
    int last = int(p.k / 4u);
    int k = 0;
    for (; k + 4 <= last; k += 4) {
        step_of(a_at, b_at, k, 4u);
    }
    for (; k < last; ++k) {
        step_of(a_at, b_at, k, 1u);
    }

    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        [[unroll]] for (uint s = 0u; s < COLS; ++s) {
            if (row + r < p.m && col + s < p.n) {
                float e = p.alpha * sums[r * COLS + s];
                if (BIASED != 0u) {
                    e += p.beta * float(c[(row + r) * p.c_row + (col + s) * p.c_col]);
                }
                y[p.y_first + (batch * p.m + row + r) * p.n + col + s] = T(activate(e, ACTIVATION, p.act_a, p.act_b));
            }
        }
    }
}
