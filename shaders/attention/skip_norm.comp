// Rows of the sum of two operands and a bias, normalized and scaled: an invocation, or with GROUPED a
// work-group, does one row.
// variant: f32          T=f32
// variant: f16          T=f16 EXT_STORAGE16
// variant: f32_grouped  T=f32 GROUPED
// variant: f16_grouped  T=f16 EXT_STORAGE16 GROUPED
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

#include "lines.glsl"
SPEC(1, uint, CENTER, 1u);    // whether the mean is subtracted
SPEC(2, uint, SHIFTED, 0u);   // whether there is something to add at last
SPEC(3, uint, BIASED, 0u);
SPEC(4, uint, SUM, 0u);       // whether the sum is stored
SPEC(5, uint, STATS, 0u);     // how many statistics are: means, then inverses of deviations

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Skip { T skip[]; };
layout(set = 0, binding = 2, std430) readonly buffer Scale { T scale[]; };
layout(set = 0, binding = 3, std430) readonly buffer Shift { T shift[]; };
layout(set = 0, binding = 4, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Sum { T stored[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Means { float means[]; };
layout(set = 0, binding = 8, std430) writeonly buffer Inverses { float inverses[]; };

layout(push_constant) uniform Params
{
    uint rows, len;
    uint skips;      // rows of the second operand, which are repeated
    float epsilon;
} p;

uint first;
uint skip_first;

float value(uint i)
{
    float v = float(x[first + i]) + float(skip[skip_first + i]);
    return BIASED != 0u ? v + float(bias[i]) : v;
}

void main()
{
    uint row = vector_index();
    uint start = START;
    if (row >= p.rows) {
        return;
    }
    first = row * p.len;
    skip_first = row % p.skips * p.len;
    float mean = 0.0;
    float sum = 0.0;
    if (CENTER != 0u) {
        for (uint i = start; i < p.len; i += STEP) {
            sum += value(i);
        }
        mean = total(sum) / float(p.len);
    }
    sum = 0.0;
    for (uint i = start; i < p.len; i += STEP) {
        float v = value(i) - mean;
        sum += v * v;
    }
    float inverse = 1.0 / sqrt(total(sum) / float(p.len) + p.epsilon);
    for (uint i = start; i < p.len; i += STEP) {
        float v = value(i);
        if (SUM != 0u) {
            stored[first + i] = T(v);
        }
        v = (v - mean) * inverse * float(scale[i]);
        y[first + i] = T(SHIFTED != 0u ? v + float(shift[i]) : v);
    }
    if (start == 0u) {
        if (STATS > 0u) {
            means[row] = mean;
        }
        if (STATS > 1u) {
            inverses[row] = inverse;
        }
    }
}
