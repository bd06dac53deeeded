// Few rows times weights of few bits that are read 16 bytes at a time, by the teams of few_rows.glsl. Blocks are whole units of
// 16 bytes, and every column is whole blocks. With STAGED a work-group reads its rows once, in order, and its teams take them from
// local memory.
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
#ifdef GATED
#define OTHER_BIAS(column) (BIASED != 0u ? float(other_bias[column]) : 0.0)
#endif
#include "few_rows.glsl"
SPEC(12, uint, STAGED, 1u); // groups of four that all rows take in local memory, a group after each unit; 1 is none

const uint UNIT = 4u * CODES;
const uint STAGED_MOST = 1280u;  // rust: the most groups of four in local memory

shared vec4 staged[STAGED];

uvec4 codes[COLS_MAX];
vec2 block[COLS_MAX];

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
    uint first = first_column();
    uint units = p.words / 4u;
    clear_sums();
    uint begin = t % (SPLIT * LANES);
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
    leave_sums(first, STAGED > 1u);
}
