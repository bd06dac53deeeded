// What products of pairs of tokens and experts with rows of ggml's blocks have in common.
#ifndef ONEPOOL_EXPERT_BLOCKS_GLSL
#define ONEPOOL_EXPERT_BLOCKS_GLSL

#include "blocks.glsl"
SPEC(2, uint, BIASED, 0u);

layout(set = 0, binding = 0, std430) restrict readonly buffer X { VEC x[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) restrict readonly buffer Experts { uint experts[]; };
layout(set = 0, binding = 4, std430) restrict writeonly buffer Y { float y[]; };

layout(push_constant) uniform Params
{
    uint pairs;
    uint n, k;
    uint share;      // pairs that read one row of X
    uint row_bytes;  // of the blocks of one element
    uint tiles;
} p;

#endif
