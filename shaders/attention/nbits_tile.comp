// Rows times weights of few bits: a work-group computes 64 x 64 elements, weights are made in its memory.
// variant: f32  T=f32 EXT_INT8
// variant: f16  T=f16 EXT_STORAGE16 EXT_INT8
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"

layout(local_size_x = 16, local_size_y = 16) in;

#include "nbits.glsl"
#include "square_tile.glsl"

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint row = gl_WorkGroupID.y * TILE;
    uint col = gl_WorkGroupID.x * TILE;
    clear_sums();
    // Four neighbouring codes of one column, which are in one word.
    uint column = col + t / 4u;
    uint quad = 4u * (t % 4u);
    for (uint k0 = 0u; k0 < p.k; k0 += DEPTH) {
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            uint r = t / DEPTH + 16u * q;
            uint k = k0 + t % DEPTH;
            a_tile[t % DEPTH][r] = row + r < p.m && k < p.k ? float(a[(row + r) * p.k + k]) : 0.0;
        }
        uint k = k0 + quad;
        uint word = 0u;
        vec2 block = vec2(0.0);
        if (column < p.n && k < p.k) {
            word = b[column * p.words + k / CODES] >> (k % CODES * BITS);
            block = block_of(column, k);
        }
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            float weight = (number(word, i) - block.y) * block.x;
            b_tile[quad + i][t / 4u] = k + i < p.k ? weight : 0.0;
        }
        sum_tiles();
    }
    leave_sums(row, col);
}
