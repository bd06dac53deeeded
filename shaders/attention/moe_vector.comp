// Products of few pairs with the weights of their experts: a work-group computes 8 elements of one pair, 32
// invocations sum for each.
// variant: f32         T=f32 S=f32 EXT_INT8
// variant: f16         T=f16 S=f16 EXT_STORAGE16 EXT_INT8
// variant: f16_wide    T=f16 S=f32 EXT_STORAGE16 EXT_INT8
// variant: coded_f32       T=f32 S=f32 EXT_INT8 CODED
// variant: coded_f16       T=f16 S=f16 EXT_STORAGE16 EXT_INT8 CODED
// variant: coded_f16_wide  T=f16 S=f32 EXT_STORAGE16 EXT_INT8 CODED
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 256) in;

#include "moe.glsl"

const uint COLS = 8u;  // rust: elements of a work-group
const uint PARTS = 32u;

shared float sums[256];

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
    uint row = experts[pair] * p.n + column;
    uint from = pair / p.share * p.k;
    float sum = 0.0;
    if (column < p.n) {
        // Neighbouring invocations read neighbouring weights.
#ifdef CODED
        for (uint word = t % PARTS; word < p.words; word += PARTS) {
            uint k = word * CODES;
            uint bits = w[row * p.words + word];
            // Blocks are whole words, or a whole row.
            vec2 block = block_of(row, k);
            for (uint i = 0u; i < CODES && k + i < p.k; ++i) {
                sum = fma(float(x[from + k + i]), weight(bits, i, block), sum);
            }
        }
#else
        for (uint k = t % PARTS; k < p.k; k += PARTS) {
            sum = fma(float(x[from + k]), float(w[row * p.k + k]), sum);
        }
#endif
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
        y[pair * p.n + column] = BIASED != 0u ? sums[t] + float(bias[row]) : sums[t];
    }
}
