// All time steps of a recurrent layer: a work-group does one sequence in one direction, its state in local memory.
#version 450
#include "spec.glsl"
#include "cell_kind.glsl"
#include "grid.glsl"
#define FUNCTIONS_OF_GATES
#include "functions.glsl"

layout(local_size_x = 256) in;
#define STATE_H 1u  // rust: state h, where states are wanted
#define STATE_C 2u  // rust: state c, where states are wanted

SPEC(1, uint, KIND, 0u);
SPEC(2, uint, BIASED, 0u);
SPEC(3, uint, PEEPHOLES, 0u);
SPEC(4, uint, LENGTHS, 0u);
SPEC(5, uint, CLIPPED, 0u);
SPEC(6, uint, INPUT_FORGET, 0u);
SPEC(7, uint, F0, FN_SIGMOID);       // functions f, g and h of the first direction, then of the second
SPEC(8, uint, G0, FN_TANH);
SPEC(9, uint, H0, FN_TANH);
SPEC(10, uint, F1, FN_SIGMOID);
SPEC(11, uint, G1, FN_TANH);
SPEC(12, uint, H1, FN_TANH);
SPEC(13, uint, INITIAL, 0u); // which initial states are given
SPEC(14, uint, LAST, 0u);    // which last states are stored

layout(set = 0, binding = 0, std430) readonly buffer XW { float xw[]; };      // [direction][row of X][gate][element]
layout(set = 0, binding = 1, std430) readonly buffer R { float r[]; };        // [direction][element of h][gate][element]
layout(set = 0, binding = 2, std430) readonly buffer Bias { float bias[]; };
layout(set = 0, binding = 3, std430) readonly buffer Peepholes { float peepholes[]; };
layout(set = 0, binding = 4, std430) readonly buffer Lengths { int lengths[]; };
layout(set = 0, binding = 5, std430) readonly buffer FirstH { float first_h[]; };
layout(set = 0, binding = 6, std430) readonly buffer FirstC { float first_c[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Y { float y[]; };
layout(set = 0, binding = 8, std430) writeonly buffer LastH { float last_h[]; };
layout(set = 0, binding = 9, std430) writeonly buffer LastC { float last_c[]; };

layout(push_constant) uniform Params
{
    uint rows;                     // directions x batch
    uint batch, hidden;            // hidden is at most MAX_HIDDEN
    uint steps;
    uint reversed;                 // bit d: whether direction d goes from last to first
    uint x_step, x_batch, x_dir;   // strides in XW
    uint s_batch, s_dir;           // in the states
    uint y_step, y_batch, y_dir;
    float clip;
    float alpha[6];
    float beta[6];
} p;

const uint MAX_HIDDEN = 256u;  // rust: the most elements of a state in local memory
const uint GATES = KIND == KIND_RNN ? 1u : (KIND == KIND_LSTM ? 4u : 3u);

uint dir;

#include "step.glsl"

shared float h[MAX_HIDDEN];
shared float c[MAX_HIDDEN];            // an LSTM's second state, a GRU's scaled state
shared float sums[MAX_HIDDEN * 4u];

float bias_at(uint gate, uint j)
{
    return BIASED != 0u ? bias[(dir * 2u * GATES + gate) * p.hidden + j] : 0.0;
}

// What gate `gate` gets from X, and its own bias.
float own(uint x_at, uint gate, uint j)
{
    return xw[x_at + gate * p.hidden + j] + bias_at(gate, j);
}

// What it gets from the state, and the recurrent bias.
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
                sum = fma(r[r_at + k * width + column], c[k], sum);
            }
        } else {
            for (uint k = 0u; k < p.hidden; ++k) {
                sum = fma(r[r_at + k * width + column], h[k], sum);
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
    uint len = p.steps;
    if (LENGTHS != 0u) {
        len = uint(clamp(lengths[b], 0, int(p.steps)));
    }
    uint s_at = dir * p.s_dir + b * p.s_batch;
    for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
        // A sequence without steps has zeros for its last state.
        h[j] = len > 0u && (INITIAL & STATE_H) != 0u ? first_h[s_at + j] : 0.0;
        c[j] = len > 0u && (INITIAL & STATE_C) != 0u ? first_c[s_at + j] : 0.0;
    }
    barrier();
    for (uint step = 0u; step < len; ++step) {
        uint time = (p.reversed >> dir & 1u) != 0u ? len - 1u - step : step;
        uint x_at = dir * p.x_dir + time * p.x_step + b * p.x_batch;
        uint y_at = dir * p.y_dir + time * p.y_step + b * p.y_batch;
        multiply(0u, (KIND == KIND_GRU_BEFORE ? 2u : GATES) * p.hidden, false);
        if (KIND == KIND_GRU_BEFORE) {
            for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
                c[j] = finish(own(x_at, 1u, j) + back(1u, j), 0u) * h[j];
            }
            barrier();
            multiply(2u * p.hidden, 3u * p.hidden, true);
        }
        for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
            float next;
            if (KIND == KIND_RNN) {
                next = finish(own(x_at, 0u, j) + back(0u, j), 0u);
            } else if (KIND == KIND_LSTM) {
                vec3 weights = vec3(0.0);
                if (PEEPHOLES != 0u) {
                    uint p_at = dir * 3u * p.hidden + j;
                    weights = vec3(peepholes[p_at], peepholes[p_at + p.hidden], peepholes[p_at + 2u * p.hidden]);
                }
                vec4 gates = vec4(own(x_at, 0u, j) + back(0u, j), own(x_at, 1u, j) + back(1u, j),
                                  own(x_at, 2u, j) + back(2u, j), own(x_at, 3u, j) + back(3u, j));
                float state = c[j];
                next = lstm(gates, weights, state);
                c[j] = state;
            } else {
                float reset = KIND == KIND_GRU ? finish(own(x_at, 1u, j) + back(1u, j), 0u) : 1.0;
                float z = finish(own(x_at, 0u, j) + back(0u, j), 0u);
                next = (1.0 - z) * finish(own(x_at, 2u, j) + reset * back(2u, j), 1u) + z * h[j];
            }
            h[j] = next;
            y[y_at + j] = next;
        }
        barrier();
    }
    // What was written after the end of a sequence is zero.
    for (uint time = len; time < p.steps; ++time) {
        for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
            y[dir * p.y_dir + time * p.y_step + b * p.y_batch + j] = 0.0;
        }
    }
    for (uint j = lane; j < p.hidden; j += gl_WorkGroupSize.x) {
        if ((LAST & STATE_H) != 0u) {
            last_h[s_at + j] = h[j];
        }
        if ((LAST & STATE_C) != 0u) {
            last_c[s_at + j] = c[j];
        }
    }
}
