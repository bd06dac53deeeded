// Convolution of float16 by cooperative matrices of 16 x 16 x 16, summed in float32: a work-group of 8 subgroups
// computes 128 output channels of 128 elements, a subgroup 32 x 64. Channels are summed within a tap. Weights are
// packed as [group][kd][kh][kw][ic][channels], channels rounded up to fours.
// variant: f16  EXT_FLOAT16
#version 450
#pragma use_vulkan_memory_model
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "unfold.glsl"

LOCAL_SIZE(0, 256);               // eight subgroups
SPEC(1, uint, PLAIN, 0u);         // whether the output's elements lie one behind the other
SPEC(2, uint, BIASED, 0u);
SPEC(3, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { float16_t x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { f16vec4 w[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { float16_t bias[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { float16_t y[]; };

const uint TILE = 128u;
const uint DEPTH = 32u;
const uint THREADS = gl_WorkGroupSize.x;
const uint LOADS = TILE * DEPTH / 4u / THREADS;
// Quads from one depth of the weights to the next, and from one element of the input to the next; the padding
// keeps those of one column in different banks.
const uint W_LINE = TILE / 4u + 2u;
const uint X_LINE = DEPTH / 4u + 2u;
const uint STAGE = 5u;

shared f16vec4 w_tile[DEPTH * W_LINE];
shared f16vec4 x_tile[TILE * X_LINE];
shared vec4 stage[8u * 16u * STAGE];

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint group = gl_WorkGroupID.z % p.groups;
    uint image = gl_WorkGroupID.z / p.groups;
    uint plane = p.ow * p.oh * p.od;
    uint first_channel = gl_WorkGroupID.y * TILE;
    uint first_element = gl_WorkGroupID.x * TILE;
    uint sub_row = gl_SubgroupID / 2u * 32u;
    uint sub_col = gl_SubgroupID % 2u * 64u;

    // This invocation loads LOADS quads of depths of one element, and of channels.
    uint element = first_element + t % TILE;
    uint x_depth = t / TILE * 4u * LOADS;
    int z0 = int(element / (p.ow * p.oh)) * p.sd - p.pd;
    int v0 = int(element / p.ow % p.oh) * p.sh - p.ph;
    int u0 = int(element % p.ow) * p.sw - p.pw;
    int in_plane = p.id * p.ih * p.iw;
    int x_first = int((image * p.groups + group) * p.ic + x_depth) * in_plane;
    uint w_row = (p.oc + 3u) / 4u;
    uint w_quad = first_channel / 4u + t % 32u;
    uint w_at = group * p.kd * p.kh * p.kw * p.ic * w_row + w_quad;

    coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums[2][4];
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            sums[i][j] = coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0);
        }
    }
    f16vec4 w_next[LOADS];
    f16vec4 x_next[LOADS];
    uint blocks = (p.ic + DEPTH - 1u) / DEPTH;
    uint steps = p.kd * p.kh * p.kw * blocks;
    uint kd = 0u;
    uint kh = 0u;
    uint kw = 0u;
    uint channel = 0u;
    // Every turn loads one step and sums the step before it.
    for (uint s = 0u; s <= steps; ++s) {
        [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
            w_next[i] = f16vec4(0.0);
            x_next[i] = f16vec4(0.0);
        }
        if (s < steps) {
            [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
                uint depth = channel + t / 32u + i * (THREADS / 32u);
                if (w_quad < w_row && depth < p.ic) {
                    w_next[i] = w[w_at + depth * w_row];
                }
            }
            int z = z0 + int(kd) * p.dd;
            int v = v0 + int(kh) * p.dh;
            int u = u0 + int(kw) * p.dw;
            if (element < plane && uint(z) < uint(p.id) && uint(v) < uint(p.ih) && uint(u) < uint(p.iw)) {
                int at = x_first + int(channel) * in_plane + (z * p.ih + v) * p.iw + u;
                [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
                    [[unroll]] for (uint q = 0u; q < 4u; ++q) {
                        if (channel + x_depth + 4u * i + q < p.ic) {
                            x_next[i][q] = x[at + int(4u * i + q) * in_plane];
                        }
                    }
                }
            }
            channel += DEPTH;
            if (channel >= p.ic) {
                channel = 0u;
                w_at += p.ic * w_row;
                ++kw;
                if (kw == p.kw) {
                    kw = 0u;
                    ++kh;
                    if (kh == p.kh) {
                        kh = 0u;
                        ++kd;
                    }
                }
            }
        }
        if (s > 0u) {
            [[unroll]] for (uint k = 0u; k < DEPTH; k += 16u) {
                coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA> left[2];
                [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                    uint from = k * W_LINE + (sub_row + 16u * i) / 4u;
                    coopMatLoad(left[i], w_tile, from, W_LINE, gl_CooperativeMatrixLayoutColumnMajor);
                }
                [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                    coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB> right;
                    uint from = (sub_col + 16u * j) * X_LINE + k / 4u;
                    coopMatLoad(right, x_tile, from, X_LINE, gl_CooperativeMatrixLayoutColumnMajor);
                    sums[0][j] = coopMatMulAdd(left[0], right, sums[0][j]);
                    sums[1][j] = coopMatMulAdd(left[1], right, sums[1][j]);
                }
            }
            barrier();
        }
        [[unroll]] for (uint i = 0u; i < LOADS; ++i) {
            w_tile[(t / 32u + i * (THREADS / 32u)) * W_LINE + t % 32u] = w_next[i];
            x_tile[t % TILE * X_LINE + x_depth / 4u + i] = x_next[i];
        }
        barrier();
    }

    uint first = gl_SubgroupID * 16u * STAGE;
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            coopMatStore(sums[i][j], stage, first, STAGE, gl_CooperativeMatrixLayoutRowMajor);
            barrier();
            for (uint q = gl_SubgroupInvocationID; q < 256u; q += gl_SubgroupSize) {
                uint c = first_channel + sub_row + 16u * i + q / 16u;
                uint n = first_element + sub_col + 16u * j + q % 16u;
                if (c < p.oc && n < plane) {
                    uint to = group * p.oc + c;
                    float b = BIASED != 0u ? float(bias[to]) : 0.0;
                    uint at = n / (p.ow * p.oh) * p.yd + n / p.ow % p.oh * p.yh + n % p.ow * p.yw;
                    float v = stage[first + q / 16u * STAGE + q % 16u / 4u][q % 4u] + b;
                    uint base = p.y_first + (image * p.groups * p.oc + to) * p.yc;
                    y[base + (PLAIN != 0u ? n : at)] = float16_t(activate(v, ACTIVATION, p.act_a, p.act_b));
                }
            }
            barrier();
        }
    }
}
