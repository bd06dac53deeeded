// Few rows times rows of ggml's blocks: a team of 32 invocations computes COLS columns, SPLIT teams sum parts of the same
// ones. An invocation takes 32 elements at a time.
// With GATED there are two matrices of one form, and the result is a function of the first product times the second:
// columns of the first and of the second alternate among those of a team.
// Rows may be normalized before the product, and a residual added to its result: beside.glsl.
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
SPEC(3, uint, COLS, 1u);    // 1 to COLS_MAX, of both matrices together
SPEC(4, uint, SPLIT, 1u);   // 1, 2 or 4
SPEC(8, uint, HELD, 4u);    // rows that an invocation holds sums of: at least m
#ifdef GATED
#include "activation.glsl"
SPEC(5, uint, ACTIVATION, 0u);
SPEC(6, uint, ACT_A, 0u);   // bits of the function's parameters
SPEC(7, uint, ACT_B, 0u);
const uint MATRICES = 2u;
#else
const uint MATRICES = 1u;
#endif

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

#include "beside.glsl"

const uint ROWS = 4u;      // rust: the most rows
const uint COLS_MAX = 4u;  // rust: the most columns of a team
const uint LANES = 32u;
const uint TEAMS = 4u;     // rust: of a work-group
const uint UNIT = 32u;     // rust: elements that an invocation takes at a time

shared float sums[ROWS * COLS_MAX * LANES * TEAMS];
shared float squares[ROWS * LANES * TEAMS];

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint lane = t % LANES;
    uint team = t / LANES;
    uint first = (linear_group() * (TEAMS / SPLIT) + team / SPLIT) * (COLS / MATRICES);
    uint units = p.k / UNIT;
    float own[ROWS][COLS_MAX];
    float own_squares[ROWS];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        own_squares[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
            own[r][c] = 0.0;
        }
    }
    for (uint u = team % SPLIT * LANES + lane; u < units; u += LANES * SPLIT) {
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
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        if (NORMED != 0u && r < HELD && r < p.m) {
            squares[r * LANES * TEAMS + t] = own_squares[r];
        }
        [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
            if (r < HELD && r < p.m && c < COLS) {
                sums[(r * COLS_MAX + c) * LANES * TEAMS + t] = own[r][c];
            }
        }
    }
    barrier();
    // Four to one in each step, until there are two.
    for (uint step = LANES / 4u; step >= 2u; step /= 4u) {
        if (lane < step) {
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                if (NORMED != 0u && r < HELD && r < p.m) {
                    uint at = r * LANES * TEAMS + t;
                    squares[at] += squares[at + step] + squares[at + 2u * step] + squares[at + 3u * step];
                }
                [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
                    if (r < HELD && r < p.m && c < COLS) {
                        uint at = (r * COLS_MAX + c) * LANES * TEAMS + t;
                        sums[at] += sums[at + step] + sums[at + 2u * step] + sums[at + 3u * step];
                    }
                }
            }
        }
        barrier();
    }
    uint r = lane / COLS_MAX;
    uint c = lane % COLS_MAX;
    uint column = first + c / MATRICES;
    if (team % SPLIT == 0u && c % MATRICES == 0u && r < p.m && r < ROWS && c < COLS && column < p.n) {
        float v = BIASED != 0u ? float(bias[column]) : 0.0;
        uint from = (r * COLS_MAX + c) * LANES * TEAMS + team * LANES;
        float factor = 1.0;
        if (NORMED != 0u) {
            float all = 0.0;
            for (uint s = 0u; s < SPLIT; ++s) {
                uint at = (r * TEAMS + team + s) * LANES;
                all += squares[at] + squares[at + 1u];
            }
            factor = row_factor(all);
        }
        for (uint s = 0u; s < SPLIT; ++s) {
            float part = sums[from + s * LANES] + sums[from + s * LANES + 1u];
            v += NORMED != 0u ? factor * part : part;
        }
#ifdef GATED
        float other = 0.0;
        for (uint s = 0u; s < SPLIT; ++s) {
            uint at = from + (TEAMS + s) * LANES;
            float part = sums[at] + sums[at + 1u];
            other += NORMED != 0u ? factor * part : part;
        }
        v = activate(v, ACTIVATION, uintBitsToFloat(ACT_A), uintBitsToFloat(ACT_B)) * other;
#else
        if (SUMMED != 0u) {
            v += float(summand[r * p.n + column]);
        }
#endif
        y[r * p.n + column] = T(v);
    }
}
