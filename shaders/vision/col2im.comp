// Images summed up from columns of their blocks: an invocation adds what falls on one element.
// variant: f32  T=f32 A=float
// variant: f16  T=f16 A=float EXT_STORAGE16
// variant: i32  T=i32 A=int
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    int sizes[3];       // of an image
    int kernel[3];      // of a block
    int strides[3];
    int dilations[3];
    int pads[3];        // at the beginning
    int blocks[3];
} p;

// The block along `axis` whose tap `k` falls on `at`, or -1.
int block_of(int axis, int at, int k)
{
    int from = at + p.pads[axis] - k * p.dilations[axis];
    int block = from / p.strides[axis];
    return from >= 0 && block * p.strides[axis] == from && block < p.blocks[axis] ? block : -1;
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint line = i / uint(p.sizes[2]);
    uint slice = line / uint(p.sizes[1]);
    uint plane = slice / uint(p.sizes[0]);
    int w = int(i - line * uint(p.sizes[2]));
    int h = int(line - slice * uint(p.sizes[1]));
    int d = int(slice - plane * uint(p.sizes[0]));
    A sum = A(0);
    for (int kd = 0; kd < p.kernel[0]; ++kd) {
        int bd = block_of(0, d, kd);
        for (int kh = 0; bd >= 0 && kh < p.kernel[1]; ++kh) {
            int bh = block_of(1, h, kh);
            for (int kw = 0; bh >= 0 && kw < p.kernel[2]; ++kw) {
                int bw = block_of(2, w, kw);
                if (bw >= 0) {
                    int tap = ((int(plane) * p.kernel[0] + kd) * p.kernel[1] + kh) * p.kernel[2] + kw;
                    int at = ((tap * p.blocks[0] + bd) * p.blocks[1] + bh) * p.blocks[2] + bw;
                    sum += A(x[at]);
                }
            }
        }
    }
    y[i] = T(sum);
}
