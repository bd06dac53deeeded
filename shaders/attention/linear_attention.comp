// Linear attention: a work-group keeps 32 columns of the state of one head in registers, 8 invocations for
// each column, and walks the sequence.
// variant: f32      T=f32 S=f32
// variant: f16      T=f16 S=f16 EXT_STORAGE16
// variant: f16_f32  T=f16 S=f32 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

// How the state fades.
// enum: Decay
#define DECAY_NONE 0u      // not at all
#define DECAY_HEADS 1u     // by one number for each head
#define DECAY_ELEMENTS 2u  // by one for each element of a key

layout(local_size_x = 256) in;
SPEC(1, uint, PER, 16u);     // elements of a key for each invocation
SPEC(2, uint, DECAY, 0u);
SPEC(3, uint, DELTA, 0u);    // whether the state's value for the key is subtracted from the value
SPEC(4, uint, PAST, 0u);     // whether there is a state to begin with

layout(set = 0, binding = 0, std430) readonly buffer Q { T q[]; };
layout(set = 0, binding = 1, std430) readonly buffer K { T k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { T v[]; };
layout(set = 0, binding = 3, std430) readonly buffer Past { S past[]; };
layout(set = 0, binding = 4, std430) readonly buffer Decay { T decay[]; };
layout(set = 0, binding = 5, std430) readonly buffer Beta { T beta[]; };
layout(set = 0, binding = 6, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 7, std430) writeonly buffer Present { S present[]; };

layout(push_constant) uniform Params
{
    uint count;
    uint len;
    uint heads, share;       // of keys, and of the result for each
    uint spread;             // heads of the result for each of queries
    uint k_spread;           // heads of the state for each of the keys that are given
    uint head, v_head;       // elements of a key and of a value
    uint betas;              // of one position
    float scale;
} p;

const uint COLS = 32u;  // rust: columns of a work-group
const uint PARTS = 8u;  // rust: invocations that share a column of the state

shared float parts[PARTS * COLS];

// The sum of `v` over the invocations of a column, which all of them get.
float total(float v, uint part, uint col)
{
    barrier();
    parts[part * COLS + col] = v;
    barrier();
    float sum = 0.0;
    [[unroll]] for (uint n = 0u; n < PARTS; ++n) {
        sum += parts[n * COLS + col];
    }
    return sum;
}

void main()
{
    uint group = linear_group();
    if (group >= p.count) {
        return;
    }
    uint t = gl_LocalInvocationIndex;
    uint col = t % COLS;
    uint part = t / COLS;
    uint bands = (p.v_head + COLS - 1u) / COLS;
    uint m = group % bands * COLS + col;
    uint h = group / bands % p.heads;
    uint b = group / bands / p.heads;
    bool inside = m < p.v_head;
    uint state_at = (b * p.heads + h) * p.head * p.v_head + m;
    // Element j of this invocation is element part + j * PARTS of a key.
    float state[PER];
    [[unroll]] for (uint j = 0u; j < PER; ++j) {
        uint d = part + j * PARTS;
        state[j] = PAST != 0u && inside && d < p.head ? float(past[state_at + d * p.v_head]) : 0.0;
    }
    for (uint i = 0u; i < p.len; ++i) {
        uint row = b * p.len + i;
        uint decay_at = (row * p.heads + h) * p.head;
        uint k_at = (row * p.heads + h) / p.k_spread * p.head;
        float value = inside ? float(v[(row * p.heads + h) * p.v_head + m]) : 0.0;
        float held = 0.0;
        float fade = DECAY == DECAY_HEADS ? exp(float(decay[row * p.heads + h])) : 1.0;
        [[unroll]] for (uint j = 0u; j < PER; ++j) {
            uint d = part + j * PARTS;
            if (d < p.head) {
                if (DECAY != DECAY_NONE) {
                    state[j] *= DECAY == DECAY_ELEMENTS ? exp(float(decay[decay_at + d])) : fade;
                }
                held = fma(state[j], float(k[k_at + d]), held);
            }
        }
        if (DELTA != 0u) {
            float rate = float(beta[row * p.betas + (p.betas == 1u ? 0u : h)]);
            value = rate * (value - total(held, part, col));
        }
        [[unroll]] for (uint j = 0u; j < PER; ++j) {
            uint d = part + j * PARTS;
            if (d < p.head) {
                state[j] = fma(float(k[k_at + d]), value, state[j]);
            }
        }
        for (uint g = 0u; g < p.share; ++g) {
            uint head = row * p.heads * p.share + h * p.share + g;
            uint query = head / p.spread;
            float sum = 0.0;
            [[unroll]] for (uint j = 0u; j < PER; ++j) {
                uint d = part + j * PARTS;
                if (d < p.head) {
                    sum = fma(float(q[query * p.head + d]), state[j], sum);
                }
            }
            sum = total(sum, part, col);
            if (part == 0u && inside) {
                y[head * p.v_head + m] = T(p.scale * sum);
            }
        }
    }
    [[unroll]] for (uint j = 0u; j < PER; ++j) {
        uint d = part + j * PARTS;
        if (inside && d < p.head) {
            present[state_at + d * p.v_head] = S(state[j]);
        }
    }
}
