// Operands and parameters of kernels that do all time steps of a sequence in one direction with a work-group.
#ifndef ONEPOOL_WHOLE_SEQUENCE_GLSL
#define ONEPOOL_WHOLE_SEQUENCE_GLSL

layout(set = 0, binding = 0, std430) readonly buffer XW { T xw[]; };      // [direction][row of X][gate][element]
layout(set = 0, binding = 1, std430) readonly buffer R { T r[]; };
layout(set = 0, binding = 2, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) readonly buffer Peepholes { T peepholes[]; };
layout(set = 0, binding = 4, std430) readonly buffer Lengths { int lengths[]; };
layout(set = 0, binding = 5, std430) readonly buffer FirstH { T first_h[]; };
layout(set = 0, binding = 6, std430) readonly buffer FirstC { T first_c[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 8, std430) writeonly buffer LastH { T last_h[]; };
layout(set = 0, binding = 9, std430) writeonly buffer LastC { T last_c[]; };

layout(push_constant) uniform Params
{
    uint rows;                     // directions x batch
    uint batch, hidden;
    uint steps;
    uint reversed;                 // bit d: whether direction d goes from last to first
    uint x_step, x_batch, x_dir;   // strides in XW
    uint s_batch, s_dir;           // in the states
    uint y_step, y_batch, y_dir;
    float clip;
    float alpha[6];
    float beta[6];
} p;

uint dir;

#include "step.glsl"

// Time steps of sequence `b`.
uint length_of(uint b)
{
    return LENGTHS != 0u ? uint(clamp(lengths[b], 0, int(p.steps))) : p.steps;
}

float bias_at(uint gate, uint j)
{
    return BIASED != 0u ? float(bias[(dir * 2u * GATES + gate) * p.hidden + j]) : 0.0;
}

// What the gates of element j get from X, and their own biases.
vec4 input_sums(uint x_at, uint j)
{
    vec4 own = vec4(0.0);
    [[unroll]] for (uint g = 0u; g < GATES; ++g) {
        own[g] = float(xw[x_at + g * p.hidden + j]) + bias_at(g, j);
    }
    return own;
}

vec3 peepholes_at(uint j)
{
    if (PEEPHOLES == 0u) {
        return vec3(0.0);
    }
    uint at = dir * 3u * p.hidden + j;
    return vec3(peepholes[at], peepholes[at + p.hidden], peepholes[at + 2u * p.hidden]);
}

#endif
