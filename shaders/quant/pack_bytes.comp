// Rows of bytes as a product reads them: 16 of each row together, the rows next to one another, zeros after
// the last byte. Unsigned bytes are made signed ones by taking 128 off.
// variant: b8  EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, FLIP, 0u);    // 0x80 for unsigned bytes

layout(set = 0, binding = 0, std430) readonly buffer X { uint8_t x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uint y[]; };

layout(push_constant) uniform Params
{
    uint n;                           // words
    uint rows, blocks, depth;         // of one matrix; a block is 16 bytes of a row
    uint matrix, row_step, byte_step; // strides of matrices, rows and bytes of a row
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint row = i / 4u % p.rows;
    uint block = i / 4u / p.rows % p.blocks;
    uint at = i / 4u / p.rows / p.blocks * p.matrix + row * p.row_step;
    uint first = (block * 4u + i % 4u) * 4u;
    uint word = 0u;
    for (uint j = 0u; j < 4u; ++j) {
        uint k = first + j;
        if (k < p.depth) {
            word |= (uint(x[at + k * p.byte_step]) ^ FLIP) << (8u * j);
        }
    }
    y[i] = word;
}
