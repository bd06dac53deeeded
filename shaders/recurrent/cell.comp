// One time step of a recurrent layer after its matrix products: an invocation computes one element of the state.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#define FUNCTIONS_OF_GATES
#include "functions.glsl"
#include "cell_spec.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer XW { T xw[]; };        // [direction][row of X][gate][element]
layout(set = 0, binding = 1, std430) readonly buffer HR { T hr[]; };
layout(set = 0, binding = 2, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) readonly buffer Peepholes { T peepholes[]; };
layout(set = 0, binding = 4, std430) readonly buffer Lengths { int lengths[]; };
layout(set = 0, binding = 5, std430) buffer State { T state[]; };
layout(set = 0, binding = 6, std430) buffer Second { float second[]; };     // an LSTM's c, a GRU's z
layout(set = 0, binding = 7, std430) writeonly buffer Y { T y[]; };         // a GRU's scaled state of KIND_GRU_BEFORE

layout(push_constant) uniform Params
{
    uint n;                          // directions x batch x hidden
    uint batch, hidden;
    uint steps, step;
    uint reversed;                   // bit d: whether direction d goes from last to first
    uint x_step, x_batch, x_dir;     // strides in XW
    uint r_dir, r_gate, r_batch;     // strides in HR
    uint state_row;
    uint y_step, y_batch, y_dir;
    float clip;
    float alpha[6];
    float beta[6];
} p;

uint dir;

#include "step.glsl"

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint j = i % p.hidden;
    uint row = i / p.hidden;
    uint b = row % p.batch;
    dir = row / p.batch;

    uint len = p.steps;
    if (LENGTHS != 0u) {
        len = uint(clamp(lengths[b], 0, int(p.steps)));
    }
    bool running = p.step < len;
    uint time = p.step;
    if (running && (p.reversed >> dir & 1u) != 0u) {
        time = len - 1u - p.step;
    }
    uint at = row * p.state_row + j;
    uint y_at = time * p.y_step + b * p.y_batch + dir * p.y_dir + j;
    if (!running) {
        // What was written after the end of a sequence is zero, and the state stays.
        if (KIND != KIND_GRU_BEFORE) {
            y[y_at] = T(0.0);
        }
        // A sequence without steps has zeros for its last state.
        if (len == 0u) {
            state[at] = T(0.0);
            if (KIND == KIND_LSTM) {
                second[i] = 0.0;
            }
        }
        return;
    }
    uint x_at = dir * p.x_dir + time * p.x_step + b * p.x_batch + j;
    uint r_at = dir * p.r_dir + b * p.r_batch + j;
    uint bias_at = dir * 2u * GATES * p.hidden + j;

    float own[4] = float[4](0.0, 0.0, 0.0, 0.0);
    float back[4] = float[4](0.0, 0.0, 0.0, 0.0);
    for (uint g = 0u; g < GATES; ++g) {
        own[g] = float(xw[x_at + g * p.hidden]);
        if (KIND == KIND_GRU_COMBINED) {
            if (g == 2u) {
                back[g] = float(hr[r_at]);
            }
        } else if (KIND != KIND_GRU_BEFORE || g < 2u) {
            back[g] = float(hr[r_at + g * p.r_gate]);
        }
        if (BIASED != 0u) {
            own[g] += float(bias[bias_at + g * p.hidden]);
            back[g] += float(bias[bias_at + (GATES + g) * p.hidden]);
        }
    }

    if (KIND == KIND_GRU_BEFORE) {
        second[i] = finish(own[0] + back[0], 0u);
        y[at] = T(finish(own[1] + back[1], 0u) * float(state[at]));
        return;
    }
    vec3 weights = vec3(0.0);
    if (PEEPHOLES != 0u) {
        uint p_at = dir * 3u * p.hidden + j;
        weights = vec3(peepholes[p_at], peepholes[p_at + p.hidden], peepholes[p_at + 2u * p.hidden]);
    }
    float c = KIND == KIND_LSTM || KIND == KIND_GRU_COMBINED ? second[i] : 0.0;
    float h = next_state(vec4(own[0], own[1], own[2], own[3]), vec4(back[0], back[1], back[2], back[3]), weights,
                         float(state[at]), c);
    if (KIND == KIND_LSTM) {
        second[i] = c;
    }
    state[at] = T(h);
    y[y_at] = T(h);
}
