// The bytes that a convolution's window sees, one row for each place of the output, as `pack_bytes` lays them
// out. Outside of the image there is the zero point.
// variant: b8  EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

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
    uint size[3];           // of the image
    uint places[3];         // of the output
    uint kernel[3];
    uint stride[3];
    uint dilation[3];
    int pads[3];
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
    int d0 = int(row / (p.places[1] * p.places[2]) * p.stride[0]) - p.pads[0];
    int h0 = int(row / p.places[2] % p.places[1] * p.stride[1]) - p.pads[1];
    int w0 = int(row % p.places[2] * p.stride[2]) - p.pads[2];
    uint outside = ZERO != 0u ? uint(zero[0]) : 0u;
    uint word = 0u;
    for (uint j = 0u; j < 4u; ++j) {
        uint k = first + j;
        if (k >= p.depth) {
            break;
        }
        uint w = uint(w0 + int(k % p.kernel[2] * p.dilation[2]));
        k /= p.kernel[2];
        uint h = uint(h0 + int(k % p.kernel[1] * p.dilation[1]));
        k /= p.kernel[1];
        uint d = uint(d0 + int(k % p.kernel[0] * p.dilation[0]));
        uint channel = k / p.kernel[0];
        uint byte = outside;
        // A negative place is a large one.
        if (d < p.size[0] && h < p.size[1] && w < p.size[2]) {
            byte = uint(x[image + ((channel * p.size[0] + d) * p.size[1] + h) * p.size[2] + w]);
        }
        word |= (byte ^ FLIP) << (8u * j);
    }
    y[i] = word;
}
