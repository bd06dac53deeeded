// Contiguous rows whose length is a multiple of four, brought to mean 0 and variance 1, then scaled: a team of TEAM
// invocations does one row, which they hold from the only read on.
// variant: f32  T=f32  VEC=vec4
// variant: f16  T=f16  VEC=f16vec4  EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "stats.glsl"

LOCAL_SIZE(0, 256);
SPEC(1, uint, CENTER, 1u);        // whether the mean is subtracted
SPEC(2, uint, SCALED, 1u);        // whether each element has a scale
SPEC(3, uint, BIASED, 1u);
SPEC(4, uint, STATS, 0u);
SPEC(5, uint, TEAM, 64u);         // a power of two

layout(set = 0, binding = 0, std430) readonly buffer X { VEC x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Scale { VEC scale[]; };
layout(set = 0, binding = 2, std430) readonly buffer Bias { VEC bias[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { VEC y[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Means { float means[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Inverses { float inverses[]; };

layout(push_constant) uniform Params
{
    uint rows;
    uint quads;  // fours of elements in a row
    float epsilon;
} p;

#include "team.glsl"

void main()
{
    uint row = linear_group() * (gl_WorkGroupSize.x / TEAM) + gl_LocalInvocationIndex / TEAM;
    // Teams without a row go on without elements, because all wait at the barriers.
    uint quads = row < p.rows ? p.quads : 0u;
    uint first = row * p.quads;
    uint lane = gl_LocalInvocationIndex % TEAM;
    float count = float(4u * p.quads);
    vec4 held[HELD];
    vec4 sums = vec4(0.0);
    for (uint h = 0u; h < HELD; ++h) {
        uint at = lane + h * TEAM;
        held[h] = at < quads ? vec4(x[first + at]) : vec4(0.0);
        sums += held[h];
    }
    float mean = CENTER != 0u ? total(sums) / count : 0.0;
    vec4 squares = vec4(0.0);
    for (uint h = 0u; h < HELD; ++h) {
        if (lane + h * TEAM < quads) {
            held[h] -= mean;
            squares = fma(held[h], held[h], squares);
        }
    }
    float inverse = 1.0 / sqrt(total(squares) / count + p.epsilon);
    for (uint h = 0u; h < HELD; ++h) {
        uint at = lane + h * TEAM;
        if (at < quads) {
            vec4 v = held[h] * inverse;
            if (SCALED != 0u) {
                v *= vec4(scale[at]);
            }
            if (BIASED != 0u) {
                v += vec4(bias[at]);
            }
            y[first + at] = VEC(v);
        }
    }
    if (lane == 0u && row < p.rows) {
        if ((STATS & STATS_MEANS) != 0u) {
            means[row] = mean;
        }
        if ((STATS & STATS_INVERSES) != 0u) {
            inverses[row] = inverse;
        }
    }
}
