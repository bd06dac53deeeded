// Rows of the sum of two operands and a bias, normalized and scaled, whose length is a multiple of four: a team of TEAM
// invocations does one row, which they hold from the only read on.
// variant: f32  T=f32  VEC=vec4
// variant: f16  T=f16  VEC=f16vec4  EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 256);
SPEC(1, uint, CENTER, 1u);    // whether the mean is subtracted
SPEC(2, uint, SHIFTED, 0u);   // whether there is something to add at last
SPEC(3, uint, BIASED, 0u);
SPEC(4, uint, SUM, 0u);       // whether the sum is stored
SPEC(5, uint, STATS, 0u);     // how many statistics are: means, then inverses of deviations
SPEC(6, uint, TEAM, 64u);     // a power of two

layout(set = 0, binding = 0, std430) readonly buffer X { VEC x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Skip { VEC skip[]; };
layout(set = 0, binding = 2, std430) readonly buffer Scale { VEC scale[]; };
layout(set = 0, binding = 3, std430) readonly buffer Shift { VEC shift[]; };
layout(set = 0, binding = 4, std430) readonly buffer Bias { VEC bias[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Y { VEC y[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Sum { VEC stored[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Means { float means[]; };
layout(set = 0, binding = 8, std430) writeonly buffer Inverses { float inverses[]; };

layout(push_constant) uniform Params
{
    uint rows;
    uint quads;      // fours of elements in a row
    uint skips;      // rows of the second operand, which are repeated
    float epsilon;
} p;

#include "team.glsl"

void main()
{
    uint row = linear_group() * (gl_WorkGroupSize.x / TEAM) + gl_LocalInvocationIndex / TEAM;
    // Teams without a row go on without elements, because all wait at the barriers.
    uint quads = row < p.rows ? p.quads : 0u;
    uint first = row * p.quads;
    uint skip_first = row % p.skips * p.quads;
    uint lane = gl_LocalInvocationIndex % TEAM;
    float count = float(4u * p.quads);
    vec4 held[HELD];
    // Read before the sums are known, so that it does not wait for them.
    vec4 scales[HELD];
    vec4 sums = vec4(0.0);
    [[unroll]] for (uint h = 0u; h < HELD; ++h) {
        uint at = lane + h * TEAM;
        held[h] = vec4(0.0);
        scales[h] = vec4(0.0);
        if (at < quads) {
            scales[h] = vec4(scale[at]);
            held[h] = vec4(x[first + at]) + vec4(skip[skip_first + at]);
            if (BIASED != 0u) {
                held[h] += vec4(bias[at]);
            }
            if (SUM != 0u) {
                stored[first + at] = VEC(held[h]);
            }
        }
        sums += held[h];
    }
    float mean = CENTER != 0u ? total(sums) / count : 0.0;
    vec4 squares = vec4(0.0);
    [[unroll]] for (uint h = 0u; h < HELD; ++h) {
        if (lane + h * TEAM < quads) {
            held[h] -= mean;
            squares = fma(held[h], held[h], squares);
        }
    }
    float inverse = 1.0 / sqrt(total(squares) / count + p.epsilon);
    [[unroll]] for (uint h = 0u; h < HELD; ++h) {
        uint at = lane + h * TEAM;
        if (at < quads) {
            vec4 v = held[h] * inverse * scales[h];
            if (SHIFTED != 0u) {
                v += vec4(shift[at]);
            }
            y[first + at] = VEC(v);
        }
    }
    if (lane == 0u && row < p.rows) {
        if (STATS > 0u) {
            means[row] = mean;
        }
        if (STATS > 1u) {
            inverses[row] = inverse;
        }
    }
}
