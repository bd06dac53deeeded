// Columns of a deformable convolution: row (image, channel, tap) has for every output the value at the place
// that the tap is moved to. An invocation reads up to CHANNELS channels at one place.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "window.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, FACTORS, 0u);
SPEC(2, uint, CHANNELS, 8u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Offsets { T offsets[]; };
layout(set = 0, binding = 2, std430) readonly buffer Factors { T factors[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Columns { T columns[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint taps;
    uint offset_groups;
    uint channels;      // of one group of offsets
    WINDOW_2D(uint)
    OUTPUT_2D
} p;

// The elements around `place` of an axis of `size` and their weights; none outside.
void around(float place, int size, out ivec2 index, out vec2 weight)
{
    index = ivec2(0);
    weight = vec2(0.0);
    if (place > -1.0 && place < float(size)) {
        float low = floor(place);
        int i = int(low);
        if (i >= 0) {
            index.x = i;
            weight.x = 1.0 - (place - low);
        }
        if (i + 1 < size) {
            index.y = i + 1;
            weight.y = place - low;
        }
    }
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint plane = p.oh * p.ow;
    uint o = i % plane;
    uint rest = i / plane;
    uint tap = rest % p.taps;
    rest /= p.taps;
    uint chunks = (p.channels + CHANNELS - 1u) / CHANNELS;
    uint first = rest % chunks * CHANNELS;
    uint group = rest / chunks;     // of all images
    uint moved = group * p.taps + tap;

    uint oh = o / p.ow;
    float v = float(int(oh) * p.sh - p.ph + int(tap / p.kw) * p.dh) + float(offsets[2u * moved * plane + o]);
    float u = float(int(o - oh * p.ow) * p.sw - p.pw + int(tap % p.kw) * p.dw)
        + float(offsets[(2u * moved + 1u) * plane + o]);
    ivec2 rows, cols;
    vec2 wv, wu;
    around(v, p.ih, rows, wv);
    around(u, p.iw, cols, wu);
    if (FACTORS != 0u) {
        wv *= float(factors[moved * plane + o]);
    }
    bool inside = (wv.x != 0.0 || wv.y != 0.0) && (wu.x != 0.0 || wu.y != 0.0);
    uint end = min(first + CHANNELS, p.channels);
    for (uint c = first; c < end; ++c) {
        uint channel = group * p.channels + c;
        float sum = 0.0;
        if (inside) {
            int base = int(channel) * p.ih * p.iw;
            int top = base + rows.x * p.iw;
            int low = base + rows.y * p.iw;
            if (wv.x != 0.0) {
                sum += wv.x * (wu.x * float(x[top + cols.x]) + wu.y * float(x[top + cols.y]));
            }
            if (wv.y != 0.0) {
                sum += wv.y * (wu.x * float(x[low + cols.x]) + wu.y * float(x[low + cols.y]));
            }
        }
        columns[(channel * p.taps + tap) * plane + o] = T(sum);
    }
}
