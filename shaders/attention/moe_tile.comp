// Products of many pairs with the weights of their experts: a work-group computes 64 elements of 32 pairs of one
// expert, which moe_sort.comp put together.
// variant: f32         T=f32 S=f32 EXT_INT8
// variant: f16         T=f16 S=f16 EXT_STORAGE16 EXT_INT8
// variant: f16_wide    T=f16 S=f32 EXT_STORAGE16 EXT_INT8
// variant: coded_f32       T=f32 S=f32 EXT_INT8 CODED
// variant: coded_f16       T=f16 S=f16 EXT_STORAGE16 EXT_INT8 CODED
// variant: coded_f16_wide  T=f16 S=f32 EXT_STORAGE16 EXT_INT8 CODED
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 256) in;

#include "moe.glsl"

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
    // Four neighbouring weights of one row, whose codes are in one word.
    uint column = col + t / 4u;
    uint quad = 4u * (t % 4u);
    uint row = expert * p.n + column;
    for (uint k0 = 0u; k0 < p.k; k0 += DEPTH) {
        [[unroll]] for (uint q = 0u; q < ROWS / 16u; ++q) {
            uint r = t / DEPTH + 16u * q;
            uint k = k0 + t % DEPTH;
            bool inside = r < count && k < p.k;
            x_tile[t % DEPTH][r] = inside ? float(x[pairs[r] / p.share * p.k + k]) : 0.0;
        }
        uint k = k0 + quad;
#ifdef CODED
        uint bits = 0u;
        vec2 block = vec2(0.0);
        if (column < p.n && k < p.k) {
            bits = w[row * p.words + k / CODES] >> (k % CODES * BITS);
            block = block_of(row, k);
        }
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            w_tile[quad + i][t / 4u] = k + i < p.k ? weight(bits, i, block) : 0.0;
        }
#else
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            bool inside = column < p.n && k + i < p.k;
            w_tile[quad + i][t / 4u] = inside ? float(w[row * p.k + k + i]) : 0.0;
        }
#endif
        barrier();
        for (uint d = 0u; d < DEPTH; ++d) {
            float left[2];
            [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                left[i] = x_tile[d][2u * ty + i];
            }
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                float right = w_tile[d][tx + 16u * j];
                [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                    sums[i][j] = fma(left[i], right, sums[i][j]);
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
