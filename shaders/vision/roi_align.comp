// Regions of images resampled to one size: an invocation computes the mean or the largest of one bin.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, HALF_PIXEL, 1u);
SPEC(2, uint, LARGEST, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Rois { T rois[]; };
layout(set = 0, binding = 2, std430) readonly buffer Images { ivec2 images[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    int batch;
    uint channels;
    int height, width;
    uint oh, ow;
    float sampling;     // samples of a bin along an axis; 0: one for each element
    float scale;
} p;

// One bin along an axis: its first sample, their distance, how many there are, and which of them can
// lie inside an axis of `size`.
struct Bin
{
    float first, step, count;
    int low, high;
};

Bin bin_of(float from, float to, uint bins, uint at, float size)
{
    float offset = HALF_PIXEL != 0u ? 0.5 : 0.0;
    float start = from * p.scale - offset;
    float len = to * p.scale - offset - start;
    if (HALF_PIXEL == 0u) {
        len = len > 1.0 ? len : 1.0;
    }
    float bin = len / float(bins);
    Bin b;
    b.count = p.sampling > 0.0 ? p.sampling : ceil(bin);
    b.step = bin / b.count;
    b.first = start + float(at) * bin;
    float low = 0.0;
    float high = b.count;
    if (b.step > 0.0) {
        low = floor((-1.0 - b.first) / b.step) - 1.0;
        high = ceil((size - b.first) / b.step) + 1.0;
    }
    // Comparisons that no number fails.
    low = low > 0.0 ? low : 0.0;
    high = high < b.count ? high : b.count;
    b.low = low < 1e9 ? int(low) : 0;
    b.high = low < 1e9 && high > 0.0 && high < 1e9 ? int(high) : 0;
    return b;
}

// Whether sample `i` of a bin lies inside; its elements and the weight of the second.
bool sample_at(Bin b, int i, int size, out int low, out int high, out float weight)
{
    float at = b.first + (float(i) + 0.5) * b.step;
    low = 0;
    high = 0;
    weight = 0.0;
    if (!(at >= -1.0 && at <= float(size))) {
        return false;
    }
    at = max(at, 0.0);
    low = min(int(at), size - 1);
    high = min(low + 1, size - 1);
    weight = high > low ? at - float(low) : 0.0;
    return true;
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
    uint region = rest / p.channels;
    Bin rows = bin_of(float(rois[region * 4u + 1u]), float(rois[region * 4u + 3u]), p.oh, ph, float(p.height));
    Bin cols = bin_of(float(rois[region * 4u]), float(rois[region * 4u + 2u]), p.ow, pw, float(p.width));
    int image = clamp(images[region].x, 0, p.batch - 1);
    int base = (image * int(p.channels) + int(c)) * p.height * p.width;

    float sum = 0.0;
    float best = 0.0;
    float found = 0.0;
    for (int r = rows.low; r < rows.high; ++r) {
        int r0, r1;
        float v;
        if (!sample_at(rows, r, p.height, r0, r1, v)) {
            continue;
        }
        for (int k = cols.low; k < cols.high; ++k) {
            int c0, c1;
            float u;
            if (!sample_at(cols, k, p.width, c0, c1, u)) {
                continue;
            }
            float a = (1.0 - v) * (1.0 - u) * float(x[base + r0 * p.width + c0]);
            float b = (1.0 - v) * u * float(x[base + r0 * p.width + c1]);
            float d = v * (1.0 - u) * float(x[base + r1 * p.width + c0]);
            float e = v * u * float(x[base + r1 * p.width + c1]);
            sum += a + b + d + e;
            float largest = max(max(a, b), max(d, e));
            best = found == 0.0 ? largest : max(best, largest);
            found += 1.0;
        }
    }
    float all = rows.count * cols.count;
    if (LARGEST != 0u) {
        // A sample outside the image is a zero.
        y[i] = T(found < all ? max(best, 0.0) : best);
    } else {
        y[i] = T(sum / (all > 1.0 ? all : 1.0));
    }
}
