// Softmax or its logarithm of contiguous vectors whose length is a multiple of four: a team of TEAM invocations does
// one vector, which they hold from the only read on.
// variant: f32  T=f32  VEC=vec4
// variant: f16  T=f16  VEC=f16vec4  EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 256);
SPEC(1, uint, LOGARITHM, 0u);
SPEC(2, uint, TEAM, 64u);      // a power of two

layout(set = 0, binding = 0, std430) readonly buffer X { VEC x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { VEC y[]; };

layout(push_constant) uniform Params
{
    uint rows;
    uint quads;  // fours of elements in a row
} p;

#include "team.glsl"

void main()
{
    uint row = linear_group() * (gl_WorkGroupSize.x / TEAM) + gl_LocalInvocationIndex / TEAM;
    // Teams without a row go on without elements, because all wait at the barriers.
    uint quads = row < p.rows ? p.quads : 0u;
    uint first = row * p.quads;
    uint lane = gl_LocalInvocationIndex % TEAM;
    vec4 held[HELD];
    vec4 tops = vec4(uintBitsToFloat(0xff800000u));
    for (uint h = 0u; h < HELD; ++h) {
        uint at = lane + h * TEAM;
        held[h] = at < quads ? vec4(x[first + at]) : vec4(uintBitsToFloat(0xff800000u));
        tops = max(tops, held[h]);
    }
    float top = over_team(true, max(max(tops.x, tops.y), max(tops.z, tops.w)));
    vec4 sums = vec4(0.0);
    for (uint h = 0u; h < HELD; ++h) {
        held[h] -= top;
        vec4 e = exp(held[h]);
        sums += e;
        if (LOGARITHM == 0u) {
            held[h] = e;
        }
    }
    float sum = total(sums);
    float log_sum = log(sum);
    for (uint h = 0u; h < HELD; ++h) {
        uint at = lane + h * TEAM;
        if (at < quads) {
            y[first + at] = VEC(LOGARITHM != 0u ? held[h] - log_sum : held[h] / sum);
        }
    }
}
