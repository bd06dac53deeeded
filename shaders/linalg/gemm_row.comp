// Matrix product: an invocation computes ROWS x COLS neighbouring elements. A is read four elements of a row
// at a time, B four columns at a time, each in a layout where those lie in one texel; with B_COLUMNS four elements
// of a column of B lie in one, and k is a multiple of 4.
// variant: tex    T=f32 VEC=vec4 TEXELS
// variant: tex4   T=f32 VEC=vec4 TEXELS OUT4
// variant: buf    T=f32 VEC=vec4
// variant: buf4   T=f32 VEC=vec4 OUT4
// variant: half   T=f16 VEC=f16vec4 EXT_STORAGE16 TEXELS HALVES
// variant: half4  T=f16 VEC=f16vec4 EXT_STORAGE16 TEXELS HALVES OUT4
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"

LOCAL_SIZE(0, 8);
SPEC(1, uint, ROWS, 8u);
SPEC(2, uint, COLS, 8u);          // a multiple of 4
SPEC(3, uint, BIASED, 0u);
SPEC(4, uint, ACTIVATION, 0u);
SPEC(5, uint, B_COLUMNS, 0u);

#define X_ELEMENT vec4
#include "texels.glsl"
#ifndef TEXELS
#define X_TEXEL(i) x[i]
#endif
layout(set = 0, binding = 2, std430) readonly buffer C { T c[]; };
#define SUMMAND 4
#include "output.glsl"

layout(push_constant) uniform Params
{
    uint count;             // invocations
    uint m, n, k;
    int a_first, b_first;   // where the first matrices begin, in texels
    int a_row;              // texels from one row of A to the next
    int b_row;              // texels from one row of B to the next, or from one column
    int b_tile;             // texels from COLS columns of B to the next
    int a_outer, a_inner;   // texels from one matrix to the next, of two batch axes
    int b_outer, b_inner;
    uint inner;             // size of the inner batch axis
    uint y_first;           // where the output begins
    uint c_row, c_col;      // strides of rows and columns of the summand
    float alpha, beta;
    float act_a, act_b;
} p;

const uint QUADS = COLS / 4u;

vec4 sums[ROWS * QUADS];

// Adds four products to every sum; `valid` of the four exist.
void step_of(int a_at[ROWS], int b_at[COLS], int b_row, uint valid)
{
    vec4 rows[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        rows[r] = X_TEXEL(a_at[r]);
    }
    if (B_COLUMNS != 0u) {
        [[unroll]] for (uint q = 0u; q < QUADS; ++q) {
            vec4 columns[4];
            [[unroll]] for (uint s = 0u; s < 4u; ++s) {
                columns[s] = W_TEXEL(b_at[4u * q + s] + b_row);
            }
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                vec4 column = vec4(columns[0][i], columns[1][i], columns[2][i], columns[3][i]);
                [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                    sums[r * QUADS + q] = fma(vec4(rows[r][i]), column, sums[r * QUADS + q]);
                }
            }
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        if (i < valid) {
            [[unroll]] for (uint q = 0u; q < QUADS; ++q) {
                vec4 column = W_TEXEL(b_at[q] + b_row + int(i) * p.b_row);
                [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                    sums[r * QUADS + q] = fma(vec4(rows[r][i]), column, sums[r * QUADS + q]);
                }
            }
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
    uint tile = i % tiles;
    uint batch = i / tiles;
    uint col = tile * COLS;

    int a_first = p.a_first + int(batch / p.inner) * p.a_outer + int(batch % p.inner) * p.a_inner;
    int b_first = p.b_first + int(batch / p.inner) * p.b_outer + int(batch % p.inner) * p.b_inner + int(tile) * p.b_tile;
    // Columns after the last are read as the last, and not stored.
    int b_at[COLS];
    if (B_COLUMNS != 0u) {
        [[unroll]] for (uint s = 0u; s < COLS; ++s) {
            b_at[s] = b_first + int(min(s, p.n - col - 1u)) * p.b_row;
        }
    } else {
        [[unroll]] for (uint q = 0u; q < QUADS; ++q) {
            b_at[q] = b_first + int(min(q, (p.n - col - 1u) / 4u));
        }
    }
    int b_step = B_COLUMNS != 0u ? 1 : 4 * p.b_row;
    int b_row = 0;
    int a_at[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        // Rows after the last are computed as the last, and not stored.
        a_at[r] = a_first + int(min(row + r, p.m - 1u)) * p.a_row;
    }
    [[unroll]] for (uint s = 0u; s < ROWS * QUADS; ++s) {
        sums[s] = vec4(0.0);
    }
    for (uint k = 0u; k < p.k / 4u; ++k) {
        step_of(a_at, b_at, b_row, 4u);
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            a_at[r] += 1;
        }
        b_row += b_step;
    }
    if ((p.k & 3u) != 0u) {
        step_of(a_at, b_at, b_row, p.k & 3u);
    }

    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        if (row + r < p.m) {
            uint at = p.y_first + (batch * p.m + row + r) * p.n + col;
            [[unroll]] for (uint q = 0u; q < QUADS; ++q) {
                uint n = col + 4u * q;
                vec4 v = p.alpha * sums[r * QUADS + q];
#ifdef OUT4
                if (n < p.n) {
                    if (BIASED != 0u) {
                        uint from = (row + r) * p.c_row + n * p.c_col;
                        v += p.beta * vec4(c[from], c[from + p.c_col], c[from + 2u * p.c_col], c[from + 3u * p.c_col]);
                    }
                    uint to = at / 4u + q;
                    y[to] = VEC(activate4(plus_summand(v, to), ACTIVATION, p.act_a, p.act_b));
                }
#else
                [[unroll]] for (uint s = 0u; s < 4u; ++s) {
                    if (n + s < p.n) {
                        float e = v[s];
                        if (BIASED != 0u) {
                            e += p.beta * float(c[(row + r) * p.c_row + (n + s) * p.c_col]);
                        }
                        uint to = at + 4u * q + s;
                        y[to] = T(activate(plus_summand(e, to), ACTIVATION, p.act_a, p.act_b));
                    }
                }
#endif
            }
        }
    }
}
