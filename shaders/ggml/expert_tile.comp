// Products of many pairs with the rows of ggml's blocks of their experts: a work-group computes 64 elements of 32 pairs of
// one expert, which moe_sort.comp put together.
// variant: f32       T=f32 S=f32 VEC=vec4
// variant: f16       T=f16 S=f16 VEC=f16vec4 EXT_STORAGE16
// variant: f16_wide  T=f16 S=f32 VEC=vec4 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 256) in;

#include "expert_blocks.glsl"

const uint ROWS = 32u;  // rust: pairs of a work-group
const uint COLS = 64u;  // rust: elements of a work-group
const uint DEPTH = 16u;

shared float x_tile[DEPTH][ROWS + 2u];
shared float w_tile[DEPTH][COLS + 4u];
shared uint pairs[ROWS];

void main()
{
    uint group = linear_group();
    uint bands = (p.n + COLS - 1u) / COLS;
    uint tile = group / bands;
    if (tile >= p.tiles) {
        return;
    }
    uint about = p.pairs + 3u * tile;
    uint expert = experts[about];
    uint count = experts[about + 2u];
    if (count == 0u) {
        return;
    }
    uint t = gl_LocalInvocationIndex;
    uint tx = t % 16u;
    uint ty = t / 16u;
    if (t < ROWS) {
        pairs[t] = t < count ? experts[experts[about + 1u] + t] : 0u;
    }
    barrier();
    uint col = group % bands * COLS;
    float sums[2][4];
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            sums[i][j] = 0.0;
        }
    }
    // Four neighbouring elements of one pair, and as many of one row of blocks.
    uint line = t / 4u;
    uint quad = 4u * (t % 4u);
    uint begin = (expert * p.n + col + line) * p.row_bytes;
    for (uint k0 = 0u; k0 < p.k; k0 += DEPTH) {
        vec4 left = vec4(0.0);
        vec4 weights = vec4(0.0);
        if (line < count && line < ROWS) {
            left = vec4(x[(pairs[line] / p.share * p.k + k0 + quad) / 4u]);
        }
        if (col + line < p.n) {
            vec2 scale = block_scale(begin, k0);
            weights = fma(block_codes(begin, k0 + quad), vec4(scale.x), vec4(scale.y));
        }
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            if (line < ROWS) {
                x_tile[quad + i][line] = left[i];
            }
            w_tile[quad + i][line] = weights[i];
        }
        barrier();
        for (uint d = 0u; d < DEPTH; ++d) {
            float of_pairs[2];
            [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                of_pairs[i] = x_tile[d][2u * ty + i];
            }
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                float right = w_tile[d][tx + 16u * j];
                [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                    sums[i][j] = fma(of_pairs[i], right, sums[i][j]);
                }
            }
        }
        barrier();
    }
    [[unroll]] for (uint i = 0u; i < 2u; ++i) {
        uint r = 2u * ty + i;
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            uint n = col + tx + 16u * j;
            if (r < count && n < p.n) {
                float v = sums[i][j];
                y[pairs[r] * p.n + n] = BIASED != 0u ? v + float(bias[expert * p.n + n]) : v;
            }
        }
    }
}
