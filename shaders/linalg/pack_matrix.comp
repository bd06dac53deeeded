// Lays matrices out for gemm_row: dst[batch][column / tile][row][tile] from src[first + batch .. + row .. + column ..],
// zeros after the last column. With a tile of all columns rounded up to fours: rows of whole texels.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer Src { T src[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Dst { T dst[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint tile, rows, cols;
    uint batch_stride, row_stride, col_stride;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i;
    uint lane = at % p.tile;
    at /= p.tile;
    uint row = at % p.rows;
    at /= p.rows;
    uint tiles = (p.cols + p.tile - 1u) / p.tile;
    uint col = (at % tiles) * p.tile + lane;
    uint from = at / tiles * p.batch_stride + row * p.row_stride + col * p.col_stride;
    dst[i] = col < p.cols ? src[from] : T(0.0);
}
