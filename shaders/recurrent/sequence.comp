// All time steps of a recurrent layer: a work-group does one sequence in one direction, its state in local memory.
// R is [direction][element of h][gate][element].
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#define FUNCTIONS_OF_GATES
#include "functions.glsl"
#include "cell_spec.glsl"

layout(local_size_x = 256) in;

#include "whole_sequence.glsl"

const uint MAX_HIDDEN = 256u;  // rust: the most elements of a state in local memory

shared float h[MAX_HIDDEN];
shared float c[MAX_HIDDEN];            // an LSTM's second state, a GRU's scaled state
shared float sums[MAX_HIDDEN * 4u];

// What gate `gate` gets from the state, and the recurrent bias.
float back(uint gate, uint j)
{
    return sums[gate * p.hidden + j] + bias_at(GATES + gate, j);
}

// Products of the state, or of c where `scaled`, with columns `first` to `end` of the matrix.
void multiply(uint first, uint end, bool scaled)
{
    uint width = GATES * p.hidden;
    uint r_at = dir * p.hidden * width;
    for (uint column = first + gl_LocalInvocationIndex; column < end; column += gl_WorkGroupSize.x) {
        float sum = 0.0;
        if (scaled) {
            for (uint k = 0u; k < p.hidden; ++k) {
                sum = fma(float(r[r_at + k * width + column]), c[k], sum);
            }
        } else {
            for (uint k = 0u; k < p.hidden; ++k) {
                sum = fma(float(r[r_at + k * width + column]), h[k], sum);
            }
        }
        sums[column] = sum;
    }
    barrier();
}

void main()
{
    uint row = linear_group();
    if (row >= p.rows) {
        return;
    }
    uint lane = gl_LocalInvocationIndex;
    uint b = row % p.batch;
    dir = row / p.batch;
    uint len = length_of(b);
    uint s_at = dir * p.s_dir + b * p.s_batch;
    for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
        // A sequence without steps has zeros for its last state.
        h[j] = len > 0u && (INITIAL & STATE_H) != 0u ? float(first_h[s_at + j]) : 0.0;
        c[j] = len > 0u && (INITIAL & STATE_C) != 0u ? float(first_c[s_at + j]) : 0.0;
    }
    barrier();
    for (uint step = 0u; step < len; ++step) {
        uint time = (p.reversed >> dir & 1u) != 0u ? len - 1u - step : step;
        uint x_at = dir * p.x_dir + time * p.x_step + b * p.x_batch;
        uint y_at = dir * p.y_dir + time * p.y_step + b * p.y_batch;
        multiply(0u, (KIND == KIND_GRU_BEFORE ? 2u : GATES) * p.hidden, false);
        if (KIND == KIND_GRU_BEFORE) {
            for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
                c[j] = finish(float(xw[x_at + p.hidden + j]) + bias_at(1u, j) + back(1u, j), 0u) * h[j];
            }
            barrier();
            multiply(2u * p.hidden, 3u * p.hidden, true);
        }
        for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
            vec4 recurrent = vec4(0.0);
            [[unroll]] for (uint g = 0u; g < GATES; ++g) {
                recurrent[g] = back(g, j);
            }
            float state = c[j];
            float next = next_state(input_sums(x_at, j), recurrent, peepholes_at(j), h[j], state);
            if (KIND == KIND_LSTM) {
                c[j] = state;
            }
            h[j] = next;
            y[y_at + j] = T(next);
        }
        barrier();
    }
    // What was written after the end of a sequence is zero.
    for (uint time = len; time < p.steps; ++time) {
        for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
            y[dir * p.y_dir + time * p.y_step + b * p.y_batch + j] = T(0.0);
        }
    }
    for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
        if ((LAST & STATE_H) != 0u) {
            last_h[s_at + j] = T(h[j]);
        }
        if ((LAST & STATE_C) != 0u) {
            last_c[s_at + j] = T(c[j]);
        }
    }
}
