// Copies rows of elements from one stride of rows to another: a tensor into an image's memory, and back.
// variant: b16  T=b16 EXT_INT16
// variant: b32  T=b32
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;              // elements
    uint width;          // elements of a row
    uint from, to;       // elements from one row to the next
} p;

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        uint row = i / p.width;
        uint col = i - row * p.width;
        y[row * p.to + col] = x[row * p.from + col];
    }
}
