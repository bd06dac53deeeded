// Matrix product for devices with fast workgroup memory: a work-group computes 64 x 64 elements.
// variant: f32  T=float
// variant: f16  T=float16_t EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "product.glsl"

layout(local_size_x = 16, local_size_y = 16) in;
SPEC(1, uint, A_COLUMNS, 0u);     // whether columns of A are contiguous, not rows
SPEC(2, uint, B_COLUMNS, 0u);     // whether columns of B are contiguous, not rows
SPEC(3, uint, BIASED, 0u);
SPEC(4, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { T b[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { T c[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

const uint TILE = 64u;
const uint DEPTH = 16u;

shared float a_tile[DEPTH][TILE + 4u];
shared float b_tile[DEPTH][TILE + 4u];

void main()
{
    uint tx = gl_LocalInvocationID.x;
    uint ty = gl_LocalInvocationID.y;
    uint t = gl_LocalInvocationIndex;
    uint batch = gl_WorkGroupID.z;
    uint row = gl_WorkGroupID.y * TILE;
    uint col = gl_WorkGroupID.x * TILE;
    uint a_first = p.a_first + batch / p.inner * p.a_outer + batch % p.inner * p.a_inner;
    uint b_first = p.b_first + batch / p.inner * p.b_outer + batch % p.inner * p.b_inner;

    // Neighbouring invocations load neighbouring elements.
    uvec2 a_at = A_COLUMNS != 0u ? uvec2(t % TILE, t / TILE) : uvec2(t / DEPTH, t % DEPTH);
    uvec2 a_step = A_COLUMNS != 0u ? uvec2(0u, 4u) : uvec2(16u, 0u);
    uvec2 b_at = B_COLUMNS != 0u ? uvec2(t / DEPTH, t % DEPTH) : uvec2(t % TILE, t / TILE);
    uvec2 b_step = B_COLUMNS != 0u ? uvec2(16u, 0u) : uvec2(0u, 4u);

    float sums[4][4];
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            sums[i][j] = 0.0;
        }
    }
    for (uint k0 = 0u; k0 < p.k; k0 += DEPTH) {
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            uvec2 at = a_at + q * a_step;
            uint r = row + at.x;
            uint k = k0 + at.y;
            a_tile[at.y][at.x] = r < p.m && k < p.k ? float(a[a_first + r * p.a_row + k * p.a_col]) : 0.0;
            at = b_at + q * b_step;
            r = col + at.x;
            k = k0 + at.y;
            b_tile[at.y][at.x] = r < p.n && k < p.k ? float(b[b_first + k * p.b_row + r * p.b_col]) : 0.0;
        }
        barrier();
        [[unroll]] for (uint k = 0u; k < DEPTH; ++k) {
            float left[4];
            float right[4];
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                left[i] = a_tile[k][4u * ty + i];
                right[i] = b_tile[k][tx + 16u * i];
            }
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    sums[i][j] = fma(left[i], right[j], sums[i][j]);
                }
            }
        }
        barrier();
    }

    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint r = row + 4u * ty + i;
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            uint n = col + tx + 16u * j;
            if (r < p.m && n < p.n) {
                float v = p.alpha * sums[i][j];
                if (BIASED != 0u) {
                    v += p.beta * float(c[r * p.c_row + n * p.c_col]);
                }
                y[p.y_first + (batch * p.m + r) * p.n + n] = T(activate(v, ACTIVATION, p.act_a, p.act_b));
            }
        }
    }
}
