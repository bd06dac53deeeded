// The parameters of matrix products over plain buffers; ops/linalg/device.rs fills them.
#ifndef ONEPOOL_PRODUCT_GLSL
#define ONEPOOL_PRODUCT_GLSL

layout(push_constant) uniform Params
{
    uint m, n, k;
    uint a_first, b_first;  // where the first matrices begin
    uint a_row, a_col;      // strides of rows and columns
    uint b_row, b_col;
    uint a_outer, a_inner;  // strides of matrices, of two batch axes
    uint b_outer, b_inner;
    uint inner;             // size of the inner batch axis
    uint y_first;           // where the output begins
    uint c_row, c_col;      // strides of rows and columns of the summand
    float alpha, beta;
    float act_a, act_b;
} p;

#endif
