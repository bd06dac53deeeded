// One time step of a recurrent layer for up to MAX_ROWS sequences, the product with the state and the cell: a team of 32
// invocations does a unit, an element of the state, of one direction and all sequences. R is as ONNX has it,
// [direction][gate][unit][element of h]; with QUADS it is read four elements at a time. The state before a step is a row of Y.
// variant: f32        T=f32 VEC=float
// variant: f16        T=f16 VEC=float16_t EXT_STORAGE16
// variant: f32_quads  T=f32 VEC=vec4 QUADS
// variant: f16_quads  T=f16 VEC=f16vec4 QUADS EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#define FUNCTIONS_OF_GATES
#include "functions.glsl"
#include "cell_spec.glsl"

layout(local_size_x = 128) in;
SPEC(15, uint, ROWS, 1u);    // sequences, at most MAX_ROWS

const uint MAX_ROWS = 8u;    // rust: the most sequences
const uint TEAM = 32u;
const uint TEAMS = 4u;       // rust: units of a work-group
const uint DEPTH = 4u;       // pieces of a row of R that an invocation reads at once
const uint NONE = ~0u;

#ifdef QUADS
#define PIECE vec4
const uint EACH = 4u;
#else
#define PIECE float
const uint EACH = 1u;
#endif

layout(set = 0, binding = 0, std430) readonly buffer XW { T xw[]; };       // [direction][row of X][gate][element]
layout(set = 0, binding = 1, std430) readonly buffer R { VEC r[]; };
layout(set = 0, binding = 2, std430) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) readonly buffer Peepholes { T peepholes[]; };
layout(set = 0, binding = 4, std430) readonly buffer Lengths { int lengths[]; };
layout(set = 0, binding = 5, std430) readonly buffer Before { T before[]; };       // Y, of the first step the initial state
layout(set = 0, binding = 6, std430) readonly buffer Vectors { VEC vectors[]; };   // the same, or the scaled state
layout(set = 0, binding = 7, std430) readonly buffer FirstC { T first_c[]; };
layout(set = 0, binding = 8, std430) buffer Second { float second[]; };            // an LSTM's c, a GRU's z
layout(set = 0, binding = 9, std430) writeonly buffer Y { T y[]; };                // the scaled state of KIND_GRU_BEFORE
layout(set = 0, binding = 10, std430) writeonly buffer LastH { T last_h[]; };
layout(set = 0, binding = 11, std430) writeonly buffer LastC { T last_c[]; };

layout(push_constant) uniform Params
{
    uint units;                    // directions x hidden
    uint hidden;
    uint steps, step;
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

// Gates that this step sums.
const uint FIRST = KIND == KIND_GRU_COMBINED ? 2u : 0u;
const uint COUNT = KIND == KIND_GRU_COMBINED ? 1u : (KIND == KIND_GRU_BEFORE ? 2u : GATES);

// Padded, so that the parts of neighbouring sums are in different banks.
const uint PITCH = TEAM + 4u;
shared float parts[4u * MAX_ROWS * TEAMS * PITCH];

uint length_of(uint b)
{
    return LENGTHS != 0u ? uint(clamp(lengths[b], 0, int(p.steps))) : p.steps;
}

// Where the state of sequence `b` in direction `d` begins in Before, or NONE where it is zero or the sequence has ended.
uint before_at(uint d, uint b, uint len)
{
    if (p.step >= len) {
        return NONE;
    }
    if (p.step == 0u) {
        return (INITIAL & STATE_H) != 0u ? d * p.s_dir + b * p.s_batch : NONE;
    }
    uint time = (p.reversed >> d & 1u) != 0u ? len - p.step : p.step - 1u;
    return d * p.y_dir + time * p.y_step + b * p.y_batch;
}

// Where elements of sequence `b` begin in what only this layer sees.
uint inner_at(uint d, uint b)
{
    return (d * ROWS + b) * p.hidden;
}

// The parts of the sums of `unit`, a unit of all directions, that this invocation has.
void multiply(uint unit)
{
    uint t = gl_LocalInvocationIndex;
    uint lane = t % TEAM;
    uint team = t / TEAM;
    uint d = unit / p.hidden;
    uint pieces = p.hidden / EACH;
    uint r_at = ((d * GATES + FIRST) * p.hidden + unit % p.hidden) * pieces;
    uint from[MAX_ROWS];
    float sums[4][MAX_ROWS];
    [[unroll]] for (uint b = 0u; b < ROWS; ++b) {
        uint len = length_of(b);
        uint at = before_at(d, b, len);
        if (KIND == KIND_GRU_COMBINED && p.step < len) {
            at = inner_at(d, b);
        }
        from[b] = at == NONE ? NONE : at / EACH;
        [[unroll]] for (uint g = 0u; g < COUNT; ++g) {
            sums[g][b] = 0.0;
        }
    }
    for (uint k = lane; k < pieces; k += TEAM * DEPTH) {
        PIECE weights[DEPTH][4];
        [[unroll]] for (uint i = 0u; i < DEPTH; ++i) {
            [[unroll]] for (uint g = 0u; g < COUNT; ++g) {
                weights[i][g] = PIECE(0.0);
                if (k + i * TEAM < pieces) {
                    weights[i][g] = PIECE(r[r_at + g * p.hidden * pieces + k + i * TEAM]);
                }
            }
        }
        [[unroll]] for (uint b = 0u; b < ROWS; ++b) {
            [[unroll]] for (uint i = 0u; i < DEPTH; ++i) {
                if (from[b] != NONE && k + i * TEAM < pieces) {
                    PIECE x = PIECE(vectors[from[b] + k + i * TEAM]);
                    [[unroll]] for (uint g = 0u; g < COUNT; ++g) {
                        sums[g][b] += dot(weights[i][g], x);
                    }
                }
            }
        }
    }
    [[unroll]] for (uint b = 0u; b < ROWS; ++b) {
        [[unroll]] for (uint g = 0u; g < COUNT; ++g) {
            parts[((g * ROWS + b) * TEAMS + team) * PITCH + lane] = sums[g][b];
        }
    }
}

// Sum `gate` of those that this step sums, once the invocations have added up to its first four parts.
float sum_of(uint gate, uint b, uint team)
{
    uint at = ((gate * ROWS + b) * TEAMS + team) * PITCH;
    return (parts[at] + parts[at + 1u]) + (parts[at + 2u] + parts[at + 3u]);
}

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint first = linear_group() * TEAMS;
    // The first invocations do the cell of a unit and a sequence each. What that needs is read before the product, under
    // which its latency hides.
    uint team = t / ROWS;
    uint b = t % ROWS;
    bool has_unit = team < TEAMS && first + team < p.units;
    uint unit = min(first + team, p.units - 1u);
    uint j = unit % p.hidden;
    dir = unit / p.hidden;
    uint len = length_of(b);
    uint s_at = dir * p.s_dir + b * p.s_batch + j;
    uint y_at = dir * p.y_dir + b * p.y_batch + j;
    uint inner = inner_at(dir, b) + j;
    uint time = (p.reversed >> dir & 1u) != 0u ? len - 1u - p.step : p.step;
    vec4 own = vec4(0.0);
    vec4 back = vec4(0.0);
    vec3 peeps = vec3(0.0);
    float h = 0.0;
    float c = 0.0;
    if (has_unit && p.step < len) {
        uint x_at = dir * p.x_dir + time * p.x_step + b * p.x_batch + j;
        uint bias_at = dir * 2u * GATES * p.hidden + j;
        [[unroll]] for (uint g = FIRST; g < FIRST + COUNT; ++g) {
            own[g] = float(xw[x_at + g * p.hidden]);
            if (BIASED != 0u) {
                own[g] += float(bias[bias_at + g * p.hidden]);
                back[g] = float(bias[bias_at + (GATES + g) * p.hidden]);
            }
        }
        uint h_at = before_at(dir, b, len);
        if (h_at != NONE) {
            h = float(before[h_at + j]);
        }
        if (KIND == KIND_GRU_COMBINED || (KIND == KIND_LSTM && p.step > 0u)) {
            c = second[inner];
        } else if ((INITIAL & STATE_C) != 0u) {
            c = float(first_c[s_at]);
        }
        if (PEEPHOLES != 0u) {
            uint at = dir * 3u * p.hidden + j;
            peeps = vec3(peepholes[at], peepholes[at + p.hidden], peepholes[at + 2u * p.hidden]);
        }
    }
    multiply(min(first + t / TEAM, p.units - 1u));
    barrier();
    // Four invocations add the parts of a sum.
    for (uint i = t; i < COUNT * ROWS * TEAMS * 4u; i += TEAM * TEAMS) {
        uint at = i / 4u * PITCH + i % 4u;
        float sum = 0.0;
        [[unroll]] for (uint s = 0u; s < TEAM; s += 4u) {
            sum += parts[at + s];
        }
        parts[at] = sum;
    }
    barrier();
    if (!has_unit) {
        return;
    }
    if (p.step >= len) {
        // What was written after the end of a sequence is zero, and so is the last state of one without steps.
        if (KIND != KIND_GRU_BEFORE) {
            y[y_at + p.step * p.y_step] = T(0.0);
            if (len == 0u && (LAST & STATE_H) != 0u) {
                last_h[s_at] = T(0.0);
            }
            if (len == 0u && (LAST & STATE_C) != 0u) {
                last_c[s_at] = T(0.0);
            }
        }
        return;
    }
    [[unroll]] for (uint g = FIRST; g < FIRST + COUNT; ++g) {
        back[g] += sum_of(g - FIRST, b, team);
    }
    if (KIND == KIND_GRU_BEFORE) {
        second[inner] = finish(own.x + back.x, 0u);
        y[inner] = T(finish(own.y + back.y, 0u) * h);
        return;
    }
    h = next_state(own, back, peeps, h, c);
    y[y_at + time * p.y_step] = T(h);
    if (KIND == KIND_LSTM) {
        second[inner] = c;
    }
    if (p.step + 1u == len) {
        if ((LAST & STATE_H) != 0u) {
            last_h[s_at] = T(h);
        }
        if ((LAST & STATE_C) != 0u) {
            last_c[s_at] = T(c);
        }
    }
}
