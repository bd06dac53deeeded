// All time steps of a recurrent layer: a work-group does one sequence in one direction and holds the direction's matrix in
// its registers. SLICES neighbouring invocations sum a unit, an element of the state: each has PIECES pieces of four
// weights of every gate. R is as ONNX has it, [direction][gate][unit][element of h].
// variant: f32  T=f32
// variant: f16  T=f16 HALF EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#define FUNCTIONS_OF_GATES
#include "functions.glsl"
#include "cell_spec.glsl"

LOCAL_SIZE(0, 64);
SPEC(15, uint, SLICES, 1u);
SPEC(16, uint, PIECES, 1u);  // times GATES at most MAX_HELD

#include "whole_sequence.glsl"

const uint WORDS = 96u;       // rust: the most words of weights of an invocation
const uint MAX_UNITS = 512u;  // rust: the most elements of a state
const uint MAX_ITEMS = 1024u; // rust: the most invocations
const uint MAX_SLICES = 32u;  // rust: the most of SLICES

#ifdef HALF
const uint PIECE_WORDS = 2u;
#define HELD uvec2
#else
const uint PIECE_WORDS = 4u;
#define HELD vec4
#endif
const uint MAX_HELD = WORDS / PIECE_WORDS;

// Zeros after the last unit, for the rest of the last pieces.
const uint PADDED = MAX_UNITS + 4u * MAX_SLICES;
shared vec4 h[PADDED / 4u];
shared vec4 scaled[PADDED / 4u];  // a GRU's scaled state
// Padded, so that the slices of neighbouring units are in different banks.
const uint PITCH = MAX_ITEMS + MAX_ITEMS / 32u;
shared float parts[4u * PITCH];

HELD held[MAX_HELD];

float weight(uint gate, uint unit, uint k)
{
    // Every address is inside.
    uint at = ((dir * GATES + gate) * p.hidden + min(unit, p.hidden - 1u)) * p.hidden + min(k, p.hidden - 1u);
    float v = float(r[at]);
    return unit < p.hidden && k < p.hidden ? v : 0.0;
}

HELD piece_of(uint gate, uint unit, uint k)
{
    vec4 four = vec4(weight(gate, unit, k), weight(gate, unit, k + 1u), weight(gate, unit, k + 2u),
                     weight(gate, unit, k + 3u));
#ifdef HALF
    return uvec2(packHalf2x16(four.xy), packHalf2x16(four.zw));
#else
    return four;
#endif
}

vec4 weights_of(HELD piece)
{
#ifdef HALF
    return vec4(unpackHalf2x16(piece.x), unpackHalf2x16(piece.y));
#else
    return piece;
#endif
}

// This invocation's sums for gates `first` to `end`, with the state or the scaled one.
void multiply(uint first, uint end, bool of_scaled)
{
    uint t = gl_LocalInvocationIndex;
    uint slice = t % SLICES;
    float own[4];
    [[unroll]] for (uint g = first; g < end; ++g) {
        own[g] = 0.0;
    }
    [[unroll]] for (uint i = 0u; i < PIECES; ++i) {
        vec4 x = of_scaled ? scaled[i * SLICES + slice] : h[i * SLICES + slice];
        [[unroll]] for (uint g = first; g < end; ++g) {
            vec4 w = weights_of(held[i * GATES + g]);
            own[g] = fma(w.x, x.x, fma(w.y, x.y, fma(w.z, x.z, fma(w.w, x.w, own[g]))));
        }
    }
    [[unroll]] for (uint g = first; g < end; ++g) {
        parts[g * PITCH + t + t / 32u] = own[g];
    }
    barrier();
}

// What gate `gate` gets from the state, and the recurrent bias.
float back(uint gate, uint j)
{
    float sum = bias_at(GATES + gate, j);
    [[unroll]] for (uint s = 0u; s < SLICES; ++s) {
        uint t = j * SLICES + s;
        sum += parts[gate * PITCH + t + t / 32u];
    }
    return sum;
}

void main()
{
    uint row = linear_group();
    if (row >= p.rows) {
        return;
    }
    uint t = gl_LocalInvocationIndex;
    uint b = row % p.batch;
    dir = row / p.batch;
    uint len = length_of(b);
    uint s_at = dir * p.s_dir + b * p.s_batch;
    [[unroll]] for (uint i = 0u; i < PIECES; ++i) {
        [[unroll]] for (uint g = 0u; g < GATES; ++g) {
            held[i * GATES + g] = piece_of(g, t / SLICES, (i * SLICES + t % SLICES) * 4u);
        }
    }
    for (uint i = t; i < SLICES * PIECES; i += gl_WorkGroupSize.x) {
        h[i] = vec4(0.0);
        scaled[i] = vec4(0.0);
    }
    barrier();
    // The first invocations have a unit each.
    bool has_unit = t < p.hidden;
    float state = 0.0;
    float c = 0.0;
    vec3 peeps = vec3(0.0);
    if (has_unit) {
        // A sequence without steps has zeros for its last state.
        if (len > 0u && (INITIAL & STATE_H) != 0u) {
            state = float(first_h[s_at + t]);
        }
        if (len > 0u && (INITIAL & STATE_C) != 0u) {
            c = float(first_c[s_at + t]);
        }
        h[t / 4u][t % 4u] = state;
        peeps = peepholes_at(t);
    }
    barrier();
    for (uint step = 0u; step < len; ++step) {
        uint time = (p.reversed >> dir & 1u) != 0u ? len - 1u - step : step;
        // Read before the products, under which its latency hides.
        vec4 own = vec4(0.0);
        if (has_unit) {
            own = input_sums(dir * p.x_dir + time * p.x_step + b * p.x_batch, t);
        }
        multiply(0u, KIND == KIND_GRU_BEFORE ? 2u : GATES, false);
        if (KIND == KIND_GRU_BEFORE) {
            if (has_unit) {
                scaled[t / 4u][t % 4u] = finish(own.y + back(1u, t), 0u) * state;
            }
            barrier();
            multiply(2u, 3u, true);
        }
        if (has_unit) {
            vec4 recurrent = vec4(0.0);
            [[unroll]] for (uint g = 0u; g < GATES; ++g) {
                recurrent[g] = back(g, t);
            }
            state = next_state(own, recurrent, peeps, state, c);
            h[t / 4u][t % 4u] = state;
            y[dir * p.y_dir + time * p.y_step + b * p.y_batch + t] = T(state);
        }
        barrier();
    }
    if (!has_unit) {
        return;
    }
    // What was written after the end of a sequence is zero.
    for (uint time = len; time < p.steps; ++time) {
        y[dir * p.y_dir + time * p.y_step + b * p.y_batch + t] = T(0.0);
    }
    if ((LAST & STATE_H) != 0u) {
        last_h[s_at + t] = T(state);
    }
    if ((LAST & STATE_C) != 0u) {
        last_c[s_at + t] = T(c);
    }
}
