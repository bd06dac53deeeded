// Pools over windows: y = the largest, the mean or the norm of the elements under a window.
// variant: f32      T=f32 C=float
// variant: f16      T=f16 C=float EXT_STORAGE16
// variant: i8       T=i8 C=int LOWEST=-128.0 EXT_STORAGE8
// variant: u8       T=u8 C=uint LOWEST=0.0 EXT_STORAGE8
// variant: f32_at   T=f32 C=float PLACES
// variant: f16_at   T=f16 C=float EXT_STORAGE16 PLACES
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "pool_kind.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, KIND, 0u);
SPEC(2, uint, INCLUDE_PAD, 0u);
SPEC(3, uint, COLUMN_MAJOR, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };
#ifdef PLACES
layout(set = 0, binding = 2, std430) writeonly buffer Places { uvec2 places[]; };
#endif

layout(push_constant) uniform Params
{
    uint n;
    OUTPUT_3D
    WINDOW_3D(int)
    WINDOW_ENDS_3D
    float power;
} p;

// The first and the last tap inside an axis of `size` elements, for a window that begins at `start`.
int first_tap(int start, int step)
{
    return start >= 0 ? 0 : (-start + step - 1) / step;
}

int end_tap(int start, int step, int size, int taps)
{
    return start >= size ? 0 : min(taps, (size - start + step - 1) / step);
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i;
    int u = int(at % p.ow) * p.sw - p.pw;
    at /= p.ow;
    int v = int(at % p.oh) * p.sh - p.ph;
    at /= p.oh;
    int z = int(at % p.od) * p.sd - p.pd;
    int plane = int(at / p.od) * p.id * p.ih * p.iw;
    int d0 = first_tap(z, p.dd);
    int d1 = end_tap(z, p.dd, p.id, p.kd);
    int h0 = first_tap(v, p.dh);
    int h1 = end_tap(v, p.dh, p.ih, p.kh);
    int w0 = first_tap(u, p.dw);
    int w1 = end_tap(u, p.dw, p.iw, p.kw);

    bool any = false;
    int place = -1;
    float acc = 0.0;
    for (int kd = d0; kd < d1; ++kd) {
        for (int kh = h0; kh < h1; ++kh) {
            int row = ((z + kd * p.dd) * p.ih + v + kh * p.dh) * p.iw;
            for (int kw = w0; kw < w1; ++kw) {
                int from = row + u + kw * p.dw;
                float e = float(C(x[plane + from]));
                if (KIND == KIND_MAX) {
                    if (!any || e > acc) {
                        acc = e;
                        place = from;
                    }
                    any = true;
                } else if (KIND == KIND_MEAN) {
                    acc += e;
                } else if (KIND == KIND_L1) {
                    acc += abs(e);
                } else if (KIND == KIND_L2) {
                    acc += e * e;
                } else {
                    acc += e == 0.0 ? 0.0 : pow(abs(e), p.power);
                }
            }
        }
    }
    if (KIND == KIND_MAX) {
        // The lowest value of the type.
#if defined(EXT_STORAGE8)
        acc = any ? acc : LOWEST;
#else
        acc = any ? acc : uintBitsToFloat(0xff800000u);
#endif
    } else if (KIND == KIND_MEAN) {
        int count = max(d1 - d0, 0) * max(h1 - h0, 0) * max(w1 - w0, 0);
        if (INCLUDE_PAD != 0u) {
            count = max(end_tap(z, p.dd, p.id + p.qd, p.kd), 0) * max(end_tap(v, p.dh, p.ih + p.qh, p.kh), 0) *
                    max(end_tap(u, p.dw, p.iw + p.qw, p.kw), 0);
        }
        acc = count > 0 ? acc / float(count) : 0.0;
    } else if (KIND == KIND_L2) {
        acc = sqrt(acc);
    } else if (KIND == KIND_LP) {
        acc = acc == 0.0 ? 0.0 : pow(acc, 1.0 / p.power);
    }
        y[i] = T(C(acc));
#ifdef PLACES
    if (COLUMN_MAJOR != 0u && place >= 0) {
        int w = place % p.iw;
        int h = place / p.iw % p.ih;
        place = (w * p.ih + h) * p.id + place / (p.iw * p.ih);
    }
    places[i] = place < 0 ? uvec2(0xffffffffu) : uvec2(uint(plane + place), 0u);
#endif
}
