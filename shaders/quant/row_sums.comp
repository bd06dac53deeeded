// The sums of the bytes of rows that `pack_bytes` laid out.
#version 450
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Params
{
    uint n;             // rows of all matrices
    uint rows, blocks;  // of one matrix
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i / p.rows * p.rows * p.blocks + i % p.rows;
    ivec4 sums = ivec4(0);
    for (uint b = 0u; b < p.blocks; ++b) {
        ivec4 words = ivec4(x[at + b * p.rows]);
        sums += bitfieldExtract(words, 0, 8) + bitfieldExtract(words, 8, 8) + bitfieldExtract(words, 16, 8)
            + (words >> 24);
    }
    y[i] = (sums.x + sums.y) + (sums.z + sums.w);
}
