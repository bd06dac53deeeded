// Few rows times weights of few bits: a work-group computes 8 columns, 32 invocations sum for each.
// variant: f32  T=f32 EXT_INT8
// variant: f16  T=f16 EXT_STORAGE16 EXT_INT8
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 256) in;

#include "nbits.glsl"

const uint ROWS = 4u;  // rust: the most rows that are summed in parts
const uint COLS = 8u;  // rust: columns of a work-group
const uint PARTS = 32u;

shared float sums[ROWS * 256u];

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint column = linear_group() * COLS + t / PARTS;
    float own[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        own[r] = 0.0;
    }
    if (column < p.n) {
        // Neighbouring invocations read neighbouring words.
        for (uint w = t % PARTS; w < p.words; w += PARTS) {
            uint k = w * CODES;
            if (k < p.k) {
                uint word = b[column * p.words + w];
                vec2 block = block_of(column, k);
                for (uint i = 0u; i < CODES && k + i < p.k; ++i) {
                    float weight = (number(word, i) - block.y) * block.x;
                    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                        if (r < p.m) {
                            own[r] = fma(float(a[r * p.k + k + i]), weight, own[r]);
                        }
                    }
                }
            }
        }
    }
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        sums[r * 256u + t] = own[r];
    }
    barrier();
    for (uint step = PARTS / 2u; step > 0u; step /= 2u) {
        if (t % PARTS < step) {
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                sums[r * 256u + t] += sums[r * 256u + t + step];
            }
        }
        barrier();
    }
    uint row = t % PARTS;
    if (row < p.m && row < ROWS && column < p.n) {
        float v = sums[row * 256u + t - row];
        y[row * p.n + column] = T(BIASED != 0u ? v + float(bias[column]) : v);
    }
}
