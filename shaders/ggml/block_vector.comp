// Few rows times rows of ggml's blocks, by the teams of few_rows.glsl. An invocation takes 32 elements at a time.
// variant: f32        T=f32 VEC=vec4
// variant: f16        T=f16 VEC=f16vec4 EXT_STORAGE16
// variant: f32_gated  T=f32 VEC=vec4 GATED
// variant: f16_gated  T=f16 VEC=f16vec4 EXT_STORAGE16 GATED
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 128) in;

#include "blocks.glsl"
SPEC(2, uint, BIASED, 0u);

layout(set = 0, binding = 0, std430) restrict readonly buffer A { VEC a[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer Y { T y[]; };
#ifdef GATED
layout(set = 0, binding = 5, std430) restrict readonly buffer Gain { VEC gain[]; };
#else
layout(set = 0, binding = 4, std430) restrict readonly buffer Gain { VEC gain[]; };
layout(set = 0, binding = 5, std430) restrict readonly buffer Summand { T summand[]; };
#endif

layout(push_constant) uniform Params
{
    uint m, n, k;
    uint row_bytes;  // of the blocks of one column
} p;

#define OTHER_BIAS(column) 0.0
#include "few_rows.glsl"

const uint UNIT = 32u;     // rust: elements that an invocation takes at a time

void main()
{
    uint first = first_column();
    uint units = p.k / UNIT;
    clear_sums();
    for (uint u = gl_LocalInvocationIndex % (SPLIT * LANES); u < units; u += LANES * SPLIT) {
        [[unroll]] for (uint h = 0u; h < UNIT; h += 16u) {
            uint k = u * UNIT + h;
            vec4 codes[COLS_MAX][4];
            vec2 scale[COLS_MAX];
            [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
                if (c < COLS) {
                    uint row = min(first + c / MATRICES, p.n - 1u) * p.row_bytes;
#ifdef GATED
                    second = c % MATRICES != 0u;
#endif
                    scale[c] = block_scale(row, k);
                    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                        codes[c][i] = block_codes(row, k + 4u * i);
                    }
                }
            }
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                if (r < HELD && r < p.m) {
                    vec4 x[4];
                    vec4 all = vec4(0.0);
                    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                        x[i] = vec4(a[(r * p.k + k) / 4u + i]);
                        if (NORMED != 0u) {
                            own_squares[r] += dot(x[i], x[i]);
                            x[i] *= vec4(gain[k / 4u + i]);
                        }
                        all += x[i];
                    }
                    float plain = all.x + all.y + all.z + all.w;
                    [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
                        if (c < COLS) {
                            vec4 sum = vec4(0.0);
                            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                                sum = fma(x[i], codes[c][i], sum);
                            }
                            float product = sum.x + sum.y + sum.z + sum.w;
                            own[r][c] += scale[c].x * product + scale[c].y * plain;
                        }
                    }
                }
            }
        }
    }
    leave_sums(first, false);
}
