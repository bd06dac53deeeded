// Product of large matrices for devices with fast workgroup memory: a work-group computes 128 x 128 elements, an
// invocation 8 x 8. Everything is read and written four elements at a time: sizes along contiguous axes and all
// strides are multiples of four.
// variant: f32  T=f32 VEC=vec4
// variant: f16  T=f16 VEC=f16vec4 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "product.glsl"

layout(local_size_x = 256) in;
#include "tiles.glsl"

layout(set = 0, binding = 0, std430) readonly buffer A { VEC a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { VEC b[]; };
#ifdef EXT_STORAGE16
layout(set = 0, binding = 2, std430) readonly buffer C { float16_t c[]; };
#else
layout(set = 0, binding = 2, std430) readonly buffer C { float c[]; };
#endif

#define OUT4
#include "parts.glsl"
#define SUMMAND 5
#include "output.glsl"

const uint TILE = 128u;   // rust: rows and columns of a tile
const uint DEPTH = 16u;   // rust: depth that a step sums
const uint THREADS = 256u;
const uint QUADS = DEPTH / 4u;
const uint LOADS = TILE * QUADS / THREADS;

// [k][row / 4], and the same of columns; the step after the one that is summed is written meanwhile. There are devices
// with no more workgroup memory than this, so that no padding keeps lines in different banks: `line` does.
shared vec4 a_tile[2][DEPTH][TILE / 4u];
shared vec4 b_tile[2][DEPTH][TILE / 4u];

// Where a quad of a line lies. Invocations that write four lines each, from four lines apart on, write to different banks.
uint line(uint k, uint quad)
{
    return quad ^ 2u * (k / 4u);
}

// Where the four elements of load `i` of this invocation lie in a tile: along k, or along the other axis.
uvec2 place(bool along_k, uint i)
{
    uint t = gl_LocalInvocationIndex + i * THREADS;
    return along_k ? uvec2(t / QUADS, 4u * (t % QUADS)) : uvec2(4u * (t % (TILE / 4u)), t / (TILE / 4u));
}

void main()
{
    uint tx = gl_LocalInvocationIndex % 16u;
    uint ty = gl_LocalInvocationIndex / 16u;
    uint batch = batch_of_part();
    uint row = gl_WorkGroupID.y * TILE;
    uint col = gl_WorkGroupID.x * TILE;
    uint a_first = p.a_first + batch / p.inner * p.a_outer + batch % p.inner * p.a_inner;
    uint b_first = p.b_first + batch / p.inner * p.b_outer + batch % p.inner * p.b_inner;

    uvec2 part = steps_of_part((p.k + DEPTH - 1u) / DEPTH);
    uint a_step = DEPTH * p.a_col / 4u;
    uint b_step = DEPTH * p.b_row / 4u;
    uvec2 a_at[LOADS];
    uvec2 b_at[LOADS];
    uint a_index[LOADS];
    uint b_index[LOADS];
    [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
        a_at[i] = place(A_COLUMNS == 0u, i);
        b_at[i] = place(B_COLUMNS != 0u, i);
        a_index[i] = (a_first + (row + a_at[i].x) * p.a_row + a_at[i].y * p.a_col) / 4u + part.x * a_step;
        b_index[i] = (b_first + (col + b_at[i].x) * p.b_col + b_at[i].y * p.b_row) / 4u + part.x * b_step;
    }

    vec4 sums[8][2];
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        sums[i][0] = vec4(0.0);
        sums[i][1] = vec4(0.0);
    }
    // Every turn loads one step and sums the step before it.
    for (uint s = part.x; s <= part.y; ++s) {
        vec4 a_next[LOADS];
        vec4 b_next[LOADS];
        uint k0 = s * DEPTH;
        [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
            a_next[i] = vec4(0.0);
            b_next[i] = vec4(0.0);
            if (row + a_at[i].x < p.m && k0 + a_at[i].y < p.k) {
                a_next[i] = vec4(a[a_index[i]]);
            }
            if (col + b_at[i].x < p.n && k0 + b_at[i].y < p.k) {
                b_next[i] = vec4(b[b_index[i]]);
            }
            a_index[i] += a_step;
            b_index[i] += b_step;
        }
        if (s > part.x) {
            uint now = (s - 1u) & 1u;
            [[unroll]] for (uint k = 0u; k < DEPTH; ++k) {
                vec4 left[2] = {a_tile[now][k][line(k, ty)], a_tile[now][k][line(k, ty + 16u)]};
                vec4 right[2] = {b_tile[now][k][line(k, tx)], b_tile[now][k][line(k, tx + 16u)]};
                // Every second row backwards: neighbouring operations share a factor.
                [[unroll]] for (uint i = 0u; i < 8u; ++i) {
                    [[unroll]] for (uint n = 0u; n < 8u; ++n) {
                        uint j = i % 2u == 0u ? n : 7u - n;
                        sums[i][j / 4u][j % 4u] = fma(left[i / 4u][i % 4u], right[j / 4u][j % 4u], sums[i][j / 4u][j % 4u]);
                    }
                }
            }
        }
        uint next = s & 1u;
        [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
            if (A_COLUMNS != 0u) {
                a_tile[next][a_at[i].y][line(a_at[i].y, a_at[i].x / 4u)] = a_next[i];
            } else {
                [[unroll]] for (uint q = 0u; q < 4u; ++q) {
                    a_tile[next][a_at[i].y + q][line(a_at[i].y, a_at[i].x / 4u)][a_at[i].x % 4u] = a_next[i][q];
                }
            }
            if (B_COLUMNS == 0u) {
                b_tile[next][b_at[i].y][line(b_at[i].y, b_at[i].x / 4u)] = b_next[i];
            } else {
                [[unroll]] for (uint q = 0u; q < 4u; ++q) {
                    b_tile[next][b_at[i].y + q][line(b_at[i].y, b_at[i].x / 4u)][b_at[i].x % 4u] = b_next[i][q];
                }
            }
        }
        barrier();
    }

    uint first = PARTS > 1u ? first_of_part(p.m, p.n) : p.y_first + batch * p.m * p.n;
    [[unroll]] for (uint i = 0u; i < 8u; ++i) {
        uint r = row + 64u * (i / 4u) + 4u * ty + i % 4u;
        [[unroll]] for (uint j = 0u; j < 2u; ++j) {
            uint n = col + 64u * j + 4u * tx;
            if (r < p.m && n < p.n) {
                uint to = (first + r * p.n + n) / 4u;
                if (PARTS > 1u) {
                    part_sums[to] = sums[i][j];
                    continue;
                }
                vec4 v = p.alpha * sums[i][j];
                if (BIASED != 0u) {
                    uint from = r * p.c_row + n * p.c_col;
                    v += p.beta * vec4(c[from], c[from + p.c_col], c[from + 2u * p.c_col], c[from + 3u * p.c_col]);
                }
                y[to] = VEC(activate4(plus_summand(v, to), ACTIVATION, p.act_a, p.act_b));
            }
        }
    }
}
