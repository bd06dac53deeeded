// The bytes that a convolution's window sees, one row for each place of the output, as `pack_bytes` lays them
// out. Outside of the image there is the zero point.
// variant: b8  EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, FLIP, 0u);    // 0x80 for unsigned bytes
SPEC(2, uint, ZERO, 0u);    // whether there is a zero point

layout(set = 0, binding = 0, std430) readonly buffer X { uint8_t x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Z { uint8_t zero[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uint y[]; };

layout(push_constant) uniform Params
{
    uint n;                 // words
    uint rows, blocks, depth;
    uint matrix;            // elements of the image of one matrix
    WINDOW_3D(uint)
    OUTPUT_3D
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint row = i / 4u % p.rows;
    uint block = i / 4u / p.rows % p.blocks;
    uint image = i / 4u / p.rows / p.blocks * p.matrix;
    uint first = (block * 4u + i % 4u) * 4u;
    int d0 = int(row / (p.oh * p.ow)) * p.sd - p.pd;
    int h0 = int(row / p.ow % p.oh) * p.sh - p.ph;
    int w0 = int(row % p.ow) * p.sw - p.pw;
    uvec3 size = uvec3(p.id, p.ih, p.iw);
    uint outside = ZERO != 0u ? uint(zero[0]) : 0u;
    uint word = 0u;
    for (uint j = 0u; j < 4u; ++j) {
        uint k = first + j;
        if (k >= p.depth) {
            break;
        }
        uint w = uint(w0 + int(k % p.kw) * p.dw);
        k /= p.kw;
        uint h = uint(h0 + int(k % p.kh) * p.dh);
        k /= p.kh;
        uint d = uint(d0 + int(k % p.kd) * p.dd);
        uint channel = k / p.kd;
        uint byte = outside;
        // A negative place is a large one.
        if (d < size.x && h < size.y && w < size.z) {
            byte = uint(x[image + ((channel * size.x + d) * size.y + h) * size.z + w]);
        }
        word |= (byte ^ FLIP) << (8u * j);
    }
    y[i] = word;
}
