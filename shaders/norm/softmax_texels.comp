// Softmax or its logarithm of rows of whole texels: an invocation does one row.
#version 450
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 8);
SPEC(1, uint, LOGARITHM, 0u);

layout(set = 0, binding = 0) uniform samplerBuffer x;
layout(set = 0, binding = 1, std430) writeonly buffer Y { vec4 y[]; };

layout(push_constant) uniform Params
{
    uint rows;
    int texels;   // of a row
} p;

void main()
{
    uint row = linear_id();
    if (row >= p.rows) {
        return;
    }
    int first = int(row) * p.texels;
    int end = first + p.texels;
    vec4 tops = texelFetch(x, first);
    // A NaN spoils the sum below, wherever it stands.
    for (int t = first + 1; t < end; ++t) {
        tops = max(tops, texelFetch(x, t));
    }
    float top = max(max(tops.x, tops.y), max(tops.z, tops.w));
    vec4 sums = vec4(0.0);
    for (int t = first; t < end; ++t) {
        sums += exp(texelFetch(x, t) - top);
    }
    float sum = (sums.x + sums.y) + (sums.z + sums.w);
    float log_sum = log(sum);
    float factor = 1.0 / sum;
    for (int t = first; t < end; ++t) {
        vec4 v = texelFetch(x, t) - top;
        y[t] = LOGARITHM != 0u ? v - log_sum : exp(v) * factor;
    }
}
