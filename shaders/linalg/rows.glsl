// The parameters of matrix products over texels; ops/linalg/device.rs fills them.
#ifndef ONEPOOL_ROWS_GLSL
#define ONEPOOL_ROWS_GLSL

layout(push_constant) uniform Params
{
    uint count;             // tiles of the output
    uint m, n, k;
    int a_first, b_first;   // where the first matrices begin, in texels
    int a_row;              // texels from one row of A to the next
    int b_row;              // texels from one row of B to the next, or from one column
    int b_tile;             // texels from COLS columns of B to the next
    int a_outer, a_inner;   // texels from one matrix to the next, of two batch axes
    int b_outer, b_inner;
    uint inner;             // size of the inner batch axis
    uint y_first;           // where the output begins
    uint c_row, c_col;      // distances of rows and columns of the summand
    float alpha, beta;
    float act_a, act_b;
} p;

#endif
