// Products of few pairs with the rows of ggml's blocks of their experts: a work-group computes 8 elements of one pair, 16
// invocations sum for each.
// variant: f32       T=f32 S=f32 VEC=vec4
// variant: f16       T=f16 S=f16 VEC=f16vec4 EXT_STORAGE16
// variant: f16_wide  T=f16 S=f32 VEC=vec4 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 128) in;

#include "expert_blocks.glsl"

const uint COLS = 8u;  // rust: elements of a work-group
const uint PARTS = 16u;
// Elements that an invocation takes at a time.
const uint UNIT = 16u;

shared float sums[128];

void main()
{
    uint group = linear_group();
    uint bands = (p.n + COLS - 1u) / COLS;
    uint pair = group / bands;
    if (pair >= p.pairs) {
        return;
    }
    uint t = gl_LocalInvocationIndex;
    uint column = group % bands * COLS + t / PARTS;
    uint line = experts[pair] * p.n + column;
    uint row = line * p.row_bytes;
    uint from = pair / p.share * p.k;
    float sum = 0.0;
    if (column < p.n) {
        for (uint k = t % PARTS * UNIT; k < p.k; k += PARTS * UNIT) {
            vec2 scale = block_scale(row, k);
            vec4 product = vec4(0.0);
            vec4 plain = vec4(0.0);
            [[unroll]] for (uint i = 0u; i < UNIT; i += 4u) {
                vec4 v = vec4(x[(from + k + i) / 4u]);
                product = fma(v, block_codes(row, k + i), product);
                plain += v;
            }
            sum += scale.x * (product.x + product.y + product.z + product.w);
            sum += scale.y * (plain.x + plain.y + plain.z + plain.w);
        }
    }
    sums[t] = sum;
    barrier();
    for (uint step = PARTS / 2u; step > 0u; step /= 2u) {
        if (t % PARTS < step) {
            sums[t] += sums[t + step];
        }
        barrier();
    }
    if (t % PARTS == 0u && column < p.n) {
        y[pair * p.n + column] = BIASED != 0u ? sums[t] + float(bias[line]) : sums[t];
    }
}
