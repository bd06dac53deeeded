// An image read at the places that a grid names; an invocation samples CHANNELS channels at one place.
// variant: f32      T=f32 G=f32
// variant: f16      T=f16 G=f16 EXT_STORAGE16
// variant: f16_f32  T=f16 G=f32 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

// What lies outside an image.
// enum: Outside
#define OUTSIDE_ZEROS 0u       // zeros
#define OUTSIDE_BORDER 1u      // the elements of the border
#define OUTSIDE_REFLECTION 2u  // the image mirrored

LOCAL_SIZE(0, 64);
SPEC(1, uint, RANK, 2u);
SPEC(2, int, TAPS, 2);            // along one axis: 1 nearest, 2 linear, 4 cubic
SPEC(3, uint, OUTSIDE, 0u);
SPEC(4, uint, ALIGN_CORNERS, 0u);
SPEC(5, uint, CHANNELS, 8u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Grid { G grid[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;             // invocations
    uint channels;
    uint plane;         // elements of a channel of the output
    int id, ih, iw;     // sizes of the input
} p;

float reflect_place(float v, float size)
{
    float low = ALIGN_CORNERS != 0u ? 0.0 : -0.5;
    float high = ALIGN_CORNERS != 0u ? size - 1.0 : size - 0.5;
    float range = high - low;
    if (range <= 0.0) {
        return 0.0;
    }
    if (v >= low && v <= high) {
        return v;
    }
    bool below = v < low;
    float d = below ? low - v : v - high;
    float turns = floor(d / range);
    precise float rest = d - turns * range;
    bool even = turns == floor(turns * 0.5) * 2.0;
    v = even == below ? low + rest : high - rest;
    v = v >= low ? v : low;
    return v > high ? high : v;
}

// The element that index `i`, not far from the axis, stands for; -1 is a zero.
int element(int i, int size)
{
    if (i >= 0 && i < size) {
        return i;
    }
    if (OUTSIDE == OUTSIDE_ZEROS) {
        return -1;
    }
    if (OUTSIDE == OUTSIDE_REFLECTION) {
        i = int(reflect_place(float(i), float(size)));
    }
    return clamp(i, 0, size - 1);
}

void resolve(float g, int size, out int index[4], out float weight[4])
{
    float len = float(size);
    precise float v = ALIGN_CORNERS != 0u ? (g + 1.0) / 2.0 * (len - 1.0) : ((g + 1.0) * len - 1.0) / 2.0;
    if (TAPS == 1) {
        v = roundEven(v);
    }
    if (OUTSIDE == OUTSIDE_ZEROS) {
        v = v >= -3.0 && v <= len + 2.0 ? v : -3.0;
    } else if (OUTSIDE == OUTSIDE_BORDER) {
        // Of a cubic every tap is brought inside by itself.
        float low = TAPS == 4 ? -3.0 : 0.0;
        float high = TAPS == 4 ? len + 2.0 : len - 1.0;
        v = v >= low ? v : low;
        v = v > high ? high : v;
    } else {
        v = reflect_place(v, len);
    }
    float base = floor(v);
    float f = v - base;
    int first = int(base) - (TAPS == 4 ? 1 : 0);
    for (int k = 0; k < TAPS; ++k) {
        index[k] = element(first + k, size);
    }
    if (TAPS == 1) {
        weight[0] = 1.0;
    } else if (TAPS == 2) {
        weight[0] = 1.0 - f;
        weight[1] = f;
    } else {
        const float a = -0.75;
        float b = f + 1.0;
        float c = 1.0 - f;
        float e = 2.0 - f;
        weight[0] = ((a * b - 5.0 * a) * b + 8.0 * a) * b - 4.0 * a;
        weight[1] = ((a + 2.0) * f - (a + 3.0)) * f * f + 1.0;
        weight[2] = ((a + 2.0) * c - (a + 3.0)) * c * c + 1.0;
        weight[3] = ((a * e - 5.0 * a) * e + 8.0 * a) * e - 4.0 * a;
    }
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i % p.plane;
    uint rest = i / p.plane;
    uint chunks = (p.channels + CHANNELS - 1u) / CHANNELS;
    uint first = rest % chunks * CHANNELS;
    uint image = rest / chunks;
    uint place = (image * p.plane + at) * RANK;

    int du[4], dv[4], dz[4];
    float wu[4], wv[4], wz[4];
    resolve(float(grid[place]), p.iw, du, wu);
    resolve(float(grid[place + 1u]), p.ih, dv, wv);
    int depth = 1;
    dz[0] = 0;
    wz[0] = 1.0;
    if (RANK == 3u) {
        depth = TAPS;
        resolve(float(grid[place + 2u]), p.id, dz, wz);
    }
    int size = p.id * p.ih * p.iw;
    uint end = min(first + CHANNELS, p.channels);
    for (uint c = first; c < end; ++c) {
        uint channel = image * p.channels + c;
        int base = int(channel) * size;
        float sum = 0.0;
        for (int kz = 0; kz < depth; ++kz) {
            for (int kv = 0; kv < TAPS; ++kv) {
                float w = wz[kz] * wv[kv];
                int line = base + (dz[kz] * p.ih + dv[kv]) * p.iw;
                bool outside = dz[kz] < 0 || dv[kv] < 0;
                for (int ku = 0; ku < TAPS; ++ku) {
                    float weight = w * wu[ku];
                    if (!outside && du[ku] >= 0 && weight != 0.0) {
                        sum += weight * float(x[line + du[ku]]);
                    }
                }
            }
        }
        y[channel * p.plane + at] = T(sum);
    }
}
