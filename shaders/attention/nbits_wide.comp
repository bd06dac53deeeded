// Few rows times weights of few bits that are read 16 bytes at a time: a team of 32 invocations computes COLS columns,
// SPLIT teams sum parts of the same ones. Blocks are whole units of 16 bytes, and every column is whole blocks.
// With GATED there are two matrices of one form, and the result is a function of the first product times the second:
// columns of the first and of the second alternate among those of a team.
// Rows may be normalized before the product, and a residual added to its result: beside.glsl. With STAGED a work-group reads its
// rows once, in order, and its teams take them from local memory.
// variant: f32        T=f32 VEC=vec4 EXT_INT8
// variant: f16        T=f16 VEC=f16vec4 EXT_STORAGE16 EXT_INT8
// variant: f32_gated  T=f32 VEC=vec4 EXT_INT8 GATED
// variant: f16_gated  T=f16 VEC=f16vec4 EXT_STORAGE16 EXT_INT8 GATED
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

layout(local_size_x = 128) in;

#define WHOLE_UNITS
#include "nbits.glsl"
#include "beside.glsl"
SPEC(4, uint, COLS, 1u);    // 1 to COLS_MAX, of both matrices together
SPEC(5, uint, SPLIT, 1u);   // 1, 2 or 4
SPEC(11, uint, HELD, 4u);   // rows that an invocation holds sums of: at least m
SPEC(12, uint, STAGED, 1u); // groups of four that all rows take in local memory, a group after each unit; 1 is none
#ifdef GATED
#include "activation.glsl"
SPEC(8, uint, ACTIVATION, 0u);
SPEC(9, uint, ACT_A, 0u);   // bits of the function's parameters
SPEC(10, uint, ACT_B, 0u);
const uint MATRICES = 2u;
#else
const uint MATRICES = 1u;
#endif

const uint ROWS = 4u;      // rust: the most rows
const uint COLS_MAX = 4u;  // rust: the most columns of a team
const uint LANES = 32u;
const uint TEAMS = 4u;     // rust: of a work-group
const uint UNIT = 4u * CODES;
const uint STAGED_MOST = 1280u;  // rust: the most groups of four in local memory

shared float sums[ROWS * COLS_MAX * LANES * TEAMS];
shared float squares[ROWS * LANES * TEAMS];
shared vec4 staged[STAGED];

uvec4 codes[COLS_MAX];
vec2 block[COLS_MAX];
float own_squares[ROWS];

// Reads unit `u` of the columns from `first` on.
void fetch(uint first, uint u, uint units)
{
    [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
        if (c < COLS) {
            uint column = min(first + c / MATRICES, p.n - 1u);
#ifdef GATED
            if (c % MATRICES != 0u) {
                codes[c] = other_b[column * units + u];
                block[c] = other_block_of(column, u * UNIT);
                continue;
            }
#endif
            codes[c] = b[column * units + u];
            block[c] = block_of(column, u * UNIT);
        }
    }
}

// Group of four `i` of unit `u` of row `r`, multiplied by the gain.
vec4 row_group(uint r, uint u, uint i)
{
    vec4 x = vec4(a[(r * p.k + u * UNIT) / 4u + i]);
    if (NORMED != 0u) {
        own_squares[r] += dot(x, x);
        x *= vec4(gain[u * UNIT / 4u + i]);
    }
    return x;
}

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint lane = t % LANES;
    uint team = t / LANES;
    uint first = (linear_group() * (TEAMS / SPLIT) + team / SPLIT) * (COLS / MATRICES);
    uint units = p.words / 4u;
    float own[ROWS][COLS_MAX];
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        own_squares[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
            own[r][c] = 0.0;
        }
    }
    uint begin = team % SPLIT * LANES + lane;
    if (STAGED > 1u) {
        // The codes arrive meanwhile.
        fetch(first, min(begin, units - 1u), units);
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            if (r < HELD && r < p.m) {
                for (uint at = t; at < units * CODES; at += LANES * TEAMS) {
                    uint u = at / CODES;
                    staged[(r * units + u) * (CODES + 1u) + at % CODES] = row_group(r, u, at % CODES);
                }
            }
        }
        barrier();
    }
    for (uint u = begin; u < units; u += LANES * SPLIT) {
        if (STAGED <= 1u || u != begin) {
            fetch(first, u, units);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
            if (r < HELD && r < p.m) {
                vec4 x[UNIT / 4u];
                vec4 all = vec4(0.0);
                [[unroll]] for (uint i = 0u; i < UNIT / 4u; ++i) {
                    x[i] = STAGED > 1u ? staged[(r * units + u) * (CODES + 1u) + i] : row_group(r, u, i);
                    all += x[i];
                }
                float plain = all.x + all.y + all.z + all.w;
                [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
                    if (c < COLS) {
                        vec4 sum = vec4(0.0);
                        [[unroll]] for (uint i = 0u; i < UNIT / 4u; ++i) {
                            uint word = codes[c][i * 4u / CODES] >> (i * 4u % CODES * BITS);
                            vec4 four = vec4(number(word, 0u), number(word, 1u), number(word, 2u), number(word, 3u));
                            sum = fma(x[i], four - (BITS > 4u ? block[c].y : 0.0), sum);
                        }
                        // Sums of products with large codes would lose digits that the zero point takes away.
                        float product = sum.x + sum.y + sum.z + sum.w - (BITS > 4u ? 0.0 : block[c].y * plain);
                        own[r][c] = fma(block[c].x, product, own[r][c]);
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
            // Each team has those of the units that it read.
            uint teams = STAGED > 1u ? TEAMS : SPLIT;
            uint begins = STAGED > 1u ? 0u : team;
            float all = 0.0;
            for (uint s = 0u; s < teams; ++s) {
                uint at = (r * TEAMS + begins + s) * LANES;
                all += squares[at] + squares[at + 1u];
            }
            factor = row_factor(all);
        }
        for (uint s = 0u; s < SPLIT; ++s) {
            float part = sums[from + s * LANES] + sums[from + s * LANES + 1u];
            v += NORMED != 0u ? factor * part : part;
        }
#ifdef GATED
        float other = BIASED != 0u ? float(other_bias[column]) : 0.0;
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
