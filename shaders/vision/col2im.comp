// Images summed up from columns of their blocks: an invocation sums the columns of one element.
// variant: f32  T=f32 A=float
// variant: f16  T=f16 A=float EXT_STORAGE16
// variant: i32  T=i32 A=int
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    WINDOW_3D(int)      // of blocks over an image
    OUTPUT_3D           // numbers of blocks
} p;

// The block, of `blocks` along an axis, that reads position `from` of the padded image by its first tap, or -1.
int block_at(int from, int stride, uint blocks)
{
    int block = from / stride;
    return from >= 0 && block * stride == from && uint(block) < blocks ? block : -1;
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint line = i / uint(p.iw);
    uint slice = line / uint(p.ih);
    uint plane = slice / uint(p.id);
    int w = int(i - line * uint(p.iw)) + p.pw;
    int h = int(line - slice * uint(p.ih)) + p.ph;
    int d = int(slice - plane * uint(p.id)) + p.pd;
    A sum = A(0);
    for (int kd = 0; kd < p.kd; ++kd) {
        int bd = block_at(d - kd * p.dd, p.sd, p.od);
        for (int kh = 0; bd >= 0 && kh < p.kh; ++kh) {
            int bh = block_at(h - kh * p.dh, p.sh, p.oh);
            for (int kw = 0; bh >= 0 && kw < p.kw; ++kw) {
                int bw = block_at(w - kw * p.dw, p.sw, p.ow);
                if (bw >= 0) {
                    int tap = ((int(plane) * p.kd + kd) * p.kh + kh) * p.kw + kw;
                    int at = ((tap * int(p.od) + bd) * int(p.oh) + bh) * int(p.ow) + bw;
                    sum += A(x[at]);
                }
            }
        }
    }
    y[i] = T(sum);
}
