// MaxPool and AveragePool over two dimensions, read through an image of planes one below another.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, MEAN, 0u);          // the mean, else the maximum
SPEC(2, uint, INCLUDE_PAD, 0u);

layout(set = 0, binding = 0) uniform sampler2D x;
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    OUTPUT_2D
    WINDOW_2D(int)
    WINDOW_ENDS_2D
} p;

// The taps [first, end) inside an axis of `size` elements, for a window that begins at `start`.
ivec2 inside(int start, int step, int size, int taps)
{
    int first = start >= 0 ? 0 : (step - 1 - start) / step;
    int end = start >= size ? 0 : min(taps, (size - start + step - 1) / step);
    return ivec2(first, max(end, first));
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int u = int(i % p.ow) * p.sw - p.pw;
    uint line = i / p.ow;
    int v = int(line % p.oh) * p.sh - p.ph;
    int plane = int(line / p.oh) * p.ih;
    ivec2 w = inside(u, p.dw, p.iw, p.kw);
    ivec2 h = inside(v, p.dh, p.ih, p.kh);
    bool any = false;
    float acc = MEAN != 0u ? 0.0 : uintBitsToFloat(0xff800000u);
    for (int a = h.x; a < h.y; ++a) {
        int row = plane + v + a * p.dh;
        for (int b = w.x; b < w.y; ++b) {
            float e = texelFetch(x, ivec2(u + b * p.dw, row), 0).x;
            if (MEAN != 0u) {
                acc += e;
            } else if (!any || e > acc) {
                acc = e;
            }
            any = true;
        }
    }
    if (MEAN != 0u) {
        if (INCLUDE_PAD != 0u) {
            // Padding counts at the beginning, and at the end as far as it was asked for.
            w = ivec2(0, max(inside(u, p.dw, p.iw + p.qw, p.kw).y, 0));
            h = ivec2(0, max(inside(v, p.dh, p.ih + p.qh, p.kh).y, 0));
        }
        int count = (w.y - w.x) * (h.y - h.x);
        acc = count > 0 ? acc / float(count) : 0.0;
    }
    y[i] = T(acc);
}
