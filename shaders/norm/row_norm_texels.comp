// Rows of whole texels brought to mean 0 and variance 1, then scaled, then activated: an invocation does one row.
#version 450
#include "spec.glsl"
#include "grid.glsl"
#include "stats.glsl"
#include "activation.glsl"

// Which elements have a scale and a bias.
// enum: Affine
#define AFFINE_NONE 0u      // none
#define AFFINE_ELEMENTS 1u  // each its own
#define AFFINE_RUNS 2u      // runs of whole texels share one

LOCAL_SIZE(0, 8);
SPEC(1, uint, CENTER, 1u);        // whether the mean is subtracted
SPEC(2, uint, AFFINE, 1u);
SPEC(3, uint, BIASED, 1u);
SPEC(4, uint, STATS, 0u);
SPEC(5, uint, ACTIVATION, 0u);

layout(set = 0, binding = 0) uniform samplerBuffer x;
layout(set = 0, binding = 1) uniform samplerBuffer scale;
layout(set = 0, binding = 2) uniform samplerBuffer bias;
layout(set = 0, binding = 3, std430) writeonly buffer Y { vec4 y[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Means { float means[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Inverses { float inverses[]; };

layout(push_constant) uniform Params
{
    uint rows;
    int texels;                   // of a row
    uint affine_rows;             // rows after which the parameters repeat
    int affine_stride;            // parameters of a row
    int affine_run;               // texels that share a parameter
    float epsilon;
    float act_a, act_b;
} p;

float sum_of(vec4 v)
{
    return (v.x + v.y) + (v.z + v.w);
}

float element(vec4 t, int i)
{
    return (i & 2) != 0 ? ((i & 1) != 0 ? t.w : t.z) : ((i & 1) != 0 ? t.y : t.x);
}

void main()
{
    uint row = linear_id();
    if (row >= p.rows) {
        return;
    }
    int first = int(row) * p.texels;
    int end = first + p.texels;
    float count = float(4 * p.texels);
    float mean = 0.0;
    if (CENTER != 0u) {
        vec4 sums = vec4(0.0);
        for (int t = first; t < end; ++t) {
            sums += texelFetch(x, t);
        }
        mean = sum_of(sums) / count;
    }
    vec4 squares = vec4(0.0);
    for (int t = first; t < end; ++t) {
        vec4 v = texelFetch(x, t) - mean;
        squares = fma(v, v, squares);
    }
    float inverse = 1.0 / sqrt(sum_of(squares) / count + p.epsilon);
    if (AFFINE != AFFINE_RUNS) {
        for (int t = 0; t < p.texels; ++t) {
            vec4 v = (texelFetch(x, first + t) - mean) * inverse;
            if (AFFINE == AFFINE_ELEMENTS) {
                v *= texelFetch(scale, t);
            }
            if (BIASED != 0u) {
                v += texelFetch(bias, t);
            }
            y[first + t] = activate4(v, ACTIVATION, p.act_a, p.act_b);
        }
    } else {
        int param = int(row % p.affine_rows) * p.affine_stride;
        int t = first;
        while (t < end) {
            float s = inverse * element(texelFetch(scale, param >> 2), param);
            float b = BIASED != 0u ? element(texelFetch(bias, param >> 2), param) : 0.0;
            b -= mean * s;
            int stop = t + p.affine_run;
            for (; t < stop; ++t) {
                vec4 v = fma(texelFetch(x, t), vec4(s), vec4(b));
                y[t] = activate4(v, ACTIVATION, p.act_a, p.act_b);
            }
            ++param;
        }
    }
    if ((STATS & STATS_MEANS) != 0u) {
        means[row] = mean;
    }
    if ((STATS & STATS_INVERSES) != 0u) {
        inverses[row] = inverse;
    }
}
