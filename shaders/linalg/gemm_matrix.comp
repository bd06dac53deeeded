// Product of float16 matrices by cooperative matrices of 16 x 16 x 16, summed in float32: a work-group of 8
// subgroups computes 128 x 128 elements, a subgroup 32 x 64. Everything is read and written four elements at a
// time: sizes along contiguous axes and all distances are multiples of four.
// variant: f16  VEC=f16vec4 EXT_FLOAT16
#version 450
#pragma use_vulkan_memory_model
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "product.glsl"

LOCAL_SIZE(0, 256);               // eight subgroups
SPEC(1, uint, A_COLUMNS, 0u);     // whether columns of A are contiguous, not rows
SPEC(2, uint, B_COLUMNS, 0u);     // whether columns of B are contiguous, not rows
SPEC(3, uint, BIASED, 0u);
SPEC(4, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer A { f16vec4 a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { f16vec4 b[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { float16_t c[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { f16vec4 y[]; };

const uint TILE = 128u;
const uint DEPTH = 32u;
const uint THREADS = gl_WorkGroupSize.x;
const uint LOADS = TILE * DEPTH / 4u / THREADS;
// Quads from one line of a tile to the next, along k or along the other axis; the padding keeps lines of one
// column in different banks.
const uint ALONG_K = DEPTH / 4u + 2u;
const uint ACROSS = TILE / 4u + 2u;
const uint STAGE = 5u;

shared f16vec4 a_tile[TILE * ALONG_K];
shared f16vec4 b_tile[TILE * ALONG_K];
shared vec4 stage[8u * 16u * STAGE];

// Quad number `i` of a tile: (place across, place along k).
uvec2 place(bool along_k, uint i)
{
    const uint quads = DEPTH / 4u;
    return along_k ? uvec2(i / quads, 4u * (i % quads)) : uvec2(4u * (i % (TILE / 4u)), i / (TILE / 4u));
}

uint slot(bool along_k, uvec2 at)
{
    return along_k ? at.x * ALONG_K + at.y / 4u : at.y * ACROSS + at.x / 4u;
}

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint batch = gl_WorkGroupID.z;
    uint row = gl_WorkGroupID.y * TILE;
    uint col = gl_WorkGroupID.x * TILE;
    uint a_first = p.a_first + batch / p.inner * p.a_outer + batch % p.inner * p.a_inner;
    uint b_first = p.b_first + batch / p.inner * p.b_outer + batch % p.inner * p.b_inner;
    const bool a_along = A_COLUMNS == 0u;
    const bool b_along = B_COLUMNS != 0u;
    uint sub_row = gl_SubgroupID / 2u * 32u;
    uint sub_col = gl_SubgroupID % 2u * 64u;

    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[2][4];
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            sums[i][j] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
        }
    }
    f16vec4 a_next[LOADS];
    f16vec4 b_next[LOADS];
    uint steps = (p.k + DEPTH - 1u) / DEPTH;
    // Every turn loads one step and sums the step before it.
    for (uint s = 0u; s <= steps; ++s) {
        uint k0 = s * DEPTH;
        [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
            uvec2 at = place(a_along, t + i * THREADS);
            bool inside = row + at.x < p.m && k0 + at.y < p.k;
            a_next[i] = f16vec4(0.0);
            if (inside) {
                a_next[i] = a[(a_first + (row + at.x) * p.a_row + (k0 + at.y) * p.a_col) / 4u];
            }
            at = place(b_along, t + i * THREADS);
            inside = col + at.x < p.n && k0 + at.y < p.k;
            b_next[i] = f16vec4(0.0);
            if (inside) {
                b_next[i] = b[(b_first + (col + at.x) * p.b_col + (k0 + at.y) * p.b_row) / 4u];
            }
        }
        if (s > 0u) {
            [[unroll]] for (uint k = 0u; k < DEPTH; k += 16u) {
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> left[2];
                [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                    uint from = slot(a_along, uvec2(sub_row + 16u * i, k));
                    if (a_along) {
                        coopMatLoad(left[i], a_tile, from, ALONG_K, gl_CooperativeMatrixLayoutRowMajor);
                    } else {
                        coopMatLoad(left[i], a_tile, from, ACROSS, gl_CooperativeMatrixLayoutColumnMajor);
                    }
                }
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> right;
                    uint from = slot(b_along, uvec2(sub_col + 16u * j, k));
                    if (b_along) {
                        coopMatLoad(right, b_tile, from, ALONG_K, gl_CooperativeMatrixLayoutColumnMajor);
                    } else {
                        coopMatLoad(right, b_tile, from, ACROSS, gl_CooperativeMatrixLayoutRowMajor);
                    }
                    sums[0][j] = coopMatMulAdd(left[0], right, sums[0][j]);
                    sums[1][j] = coopMatMulAdd(left[1], right, sums[1][j]);
                }
            }
            barrier();
        }
        [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
            a_tile[slot(a_along, place(a_along, t + i * THREADS))] = a_next[i];
            b_tile[slot(b_along, place(b_along, t + i * THREADS))] = b_next[i];
        }
        barrier();
    }

    uint first = gl_SubgroupID * 16u * STAGE;
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            coopMatStore(sums[i][j], stage, first, STAGE, gl_CooperativeMatrixLayoutRowMajor);
            barrier();
            for (uint q = gl_SubgroupInvocationID; q < 64u; q += gl_SubgroupSize) {
                uint r = row + sub_row + 16u * i + q / 4u;
                uint n = col + sub_col + 16u * j + 4u * (q % 4u);
                if (r < p.m && n < p.n) {
                    vec4 v = p.alpha * stage[first + q / 4u * STAGE + q % 4u];
                    if (BIASED != 0u) {
                        uint from = r * p.c_row + n * p.c_col;
                        v += p.beta * vec4(c[from], c[from + p.c_col], c[from + 2u * p.c_col], c[from + 3u * p.c_col]);
                    }
                    uint to = (p.y_first + (batch * p.m + r) * p.n + n) / 4u;
                    y[to] = f16vec4(activate4(v, ACTIVATION, p.act_a, p.act_b));
                }
            }
            barrier();
        }
    }
}
