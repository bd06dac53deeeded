// The largest elements of the bins of regions of images: an invocation computes one bin of one channel.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Rois { T rois[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    int batch;
    uint channels;
    int height, width;
    uint oh, ow;
    float scale;
} p;

int edge(float v)
{
    v *= p.scale;
    v = sign(v) * floor(abs(v) + 0.5);
    v = v > -268435456.0 ? v : -268435456.0;
    return int(v < 268435456.0 ? v : 268435456.0);
}

// The elements from x to before y under bin `at` of `bins`.
ivec2 bin_of(float from, float to, uint at, uint bins, int size)
{
    int start = edge(from);
    float bin = float(max(edge(to) - start + 1, 1)) / float(bins);
    ivec2 ends = ivec2(floor(float(at) * bin), ceil(float(at + 1u) * bin)) + start;
    return clamp(ends, ivec2(0), ivec2(size));
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint pw = i % p.ow;
    uint rest = i / p.ow;
    uint ph = rest % p.oh;
    rest /= p.oh;
    uint c = rest % p.channels;
    uint roi = rest / p.channels * 5u;
    ivec2 rows = bin_of(float(rois[roi + 2u]), float(rois[roi + 4u]), ph, p.oh, p.height);
    ivec2 cols = bin_of(float(rois[roi + 1u]), float(rois[roi + 3u]), pw, p.ow, p.width);
    float named = float(rois[roi]);
    int image = named > 0.0 ? int(min(named, float(p.batch - 1))) : 0;
    int base = (image * int(p.channels) + int(c)) * p.height * p.width;
    bool any_element = rows.x < rows.y && cols.x < cols.y;
    float best = any_element ? float(x[base + rows.x * p.width + cols.x]) : 0.0;
    for (int r = rows.x; r < rows.y; ++r) {
        for (int k = cols.x; k < cols.y; ++k) {
            float v = float(x[base + r * p.width + k]);
            best = v > best ? v : best;
        }
    }
    y[i] = T(best);
}
