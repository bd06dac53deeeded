// Rows brought to mean 0 and variance 1, then scaled, then activated: an invocation, or with GROUPED a work-group, does one.
// Element t of row r lies at r / inner_rows * outer_step + r % inner_rows * row_step + t / run * jump + t % run.
// variant: f32          T=f32
// variant: f16          T=f16 EXT_STORAGE16
// variant: f32_grouped  T=f32 GROUPED
// variant: f16_grouped  T=f16 EXT_STORAGE16 GROUPED
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "stats.glsl"
#include "activation.glsl"

#include "lines.glsl"
SPEC(1, uint, CENTER, 1u);        // whether the mean is subtracted
SPEC(2, uint, SCALED, 1u);
SPEC(3, uint, BIASED, 1u);
SPEC(4, uint, STATS, 0u);
SPEC(5, uint, OUTER_EPSILON, 0u); // whether epsilon is added to the deviation, not the variance
SPEC(6, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Scale { T scale[]; };
layout(set = 0, binding = 2, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Means { float means[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Inverses { float inverses[]; };

layout(push_constant) uniform Params
{
    uint rows, len;
    uint inner_rows, outer_step, row_step;
    uint run, jump;
    uint affine_rows, affine_stride, affine_run;  // r % rows * stride + t / run is the parameter of an element
    float epsilon;
    float act_a, act_b;
} p;

uint first;

uint place(uint t)
{
    uint block = t / p.run;
    return first + block * p.jump + (t - block * p.run);
}

void main()
{
    uint row = vector_index();
    uint start = START;
    if (row >= p.rows) {
        return;
    }
    first = row / p.inner_rows * p.outer_step + row % p.inner_rows * p.row_step;
    float count = float(p.len);
    float mean = 0.0;
    // In several sums, which loses less precision.
    vec4 sums = vec4(0.0);
    if (CENTER != 0u) {
        for (uint t = start; t < p.len; t += 4u * STEP) {
            for (uint k = 0u; k < 4u; ++k) {
                uint at = t + k * STEP;
                if (at < p.len) {
                    sums[k] += float(x[place(at)]);
                }
            }
        }
        mean = total((sums.x + sums.y) + (sums.z + sums.w)) / count;
    }
    sums = vec4(0.0);
    for (uint t = start; t < p.len; t += 4u * STEP) {
        for (uint k = 0u; k < 4u; ++k) {
            uint at = t + k * STEP;
            if (at < p.len) {
                float v = float(x[place(at)]) - mean;
                sums[k] += v * v;
            }
        }
    }
    float variance = total((sums.x + sums.y) + (sums.z + sums.w)) / count;
    float inverse = OUTER_EPSILON != 0u ? 1.0 / (sqrt(variance) + p.epsilon) : 1.0 / sqrt(variance + p.epsilon);
    uint param = row % p.affine_rows * p.affine_stride;
    for (uint t = start; t < p.len; t += STEP) {
        uint at = place(t);
        float v = (float(x[at]) - mean) * inverse;
        uint q = param + t / p.affine_run;
        if (SCALED != 0u) {
            v *= float(scale[q]);
        }
        if (BIASED != 0u) {
            v += float(bias[q]);
        }
        y[at] = T(activate(v, ACTIVATION, p.act_a, p.act_b));
    }
    if (start == 0u) {
        if ((STATS & STATS_MEANS) != 0u) {
            means[row] = mean;
        }
        if ((STATS & STATS_INVERSES) != 0u) {
            inverses[row] = inverse;
        }
    }
}
