// Rows times columns of weights in tiles of 64 x 64 elements, by work-groups of 16 x 16 invocations: each sums 4 x 4 of them. Include
// it after the parameters and the buffers `bias` and `y`, with BIASED.
#ifndef ONEPOOL_SQUARE_TILE_GLSL
#define ONEPOOL_SQUARE_TILE_GLSL

const uint TILE = 64u;  // rust: rows and columns of a work-group
const uint DEPTH = 16u;

shared float a_tile[DEPTH][TILE + 4u];
shared float b_tile[DEPTH][TILE + 4u];

float sums[4][4];

void clear_sums()
{
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            sums[i][j] = 0.0;
        }
    }
}

// Adds the products of the tiles, which all invocations have filled, and waits until all have read them.
void sum_tiles()
{
    uint tx = gl_LocalInvocationID.x;
    uint ty = gl_LocalInvocationID.y;
    barrier();
    for (uint d = 0u; d < DEPTH; ++d) {
        float left[4];
        float right[4];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            left[i] = a_tile[d][4u * ty + i];
            right[i] = b_tile[d][tx + 16u * i];
        }
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                sums[i][j] = fma(left[i], right[j], sums[i][j]);
            }
        }
    }
    barrier();
}

// Writes the elements of the tile that begins at (row, col).
void leave_sums(uint row, uint col)
{
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        uint r = row + 4u * gl_LocalInvocationID.y + i;
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            uint n = col + gl_LocalInvocationID.x + 16u * j;
            if (r < p.m && n < p.n) {
                float v = sums[i][j];
                y[r * p.n + n] = T(BIASED != 0u ? v + float(bias[n]) : v);
            }
        }
    }
}

#endif
