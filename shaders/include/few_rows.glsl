// Products of few rows, by teams of 32 invocations: a team computes COLS columns, SPLIT teams sum parts of the same ones. With GATED
// there are two matrices of one form, and the result is a function of the first product times the second: columns of the first and
// of the second alternate among those of a team. beside.glsl has what is done besides. Include it after the parameters, BIASED, and the
// buffers `bias`, `y`, `gain` and `summand`; with GATED, OTHER_BIAS(column) takes the place of the last.
#ifndef ONEPOOL_FEW_ROWS_GLSL
#define ONEPOOL_FEW_ROWS_GLSL

#include "beside.glsl"

#ifdef GATED
#include "activation.glsl"
SPEC(8, uint, ACTIVATION, 0u);
SPEC(9, uint, ACT_A, 0u);    // bits of the function's parameters
SPEC(10, uint, ACT_B, 0u);
const uint MATRICES = 2u;
#else
const uint MATRICES = 1u;
#endif
SPEC(4, uint, COLS, 1u);    // 1 to COLS_MAX, of both matrices together
SPEC(5, uint, SPLIT, 1u);   // 1, 2 or 4
SPEC(11, uint, HELD, 4u);   // rows that an invocation holds sums of: at least m

const uint ROWS = 4u;      // rust: the most rows
const uint COLS_MAX = 4u;  // rust: the most columns of a team
const uint LANES = 32u;
const uint TEAMS = 4u;     // rust: of a work-group

shared float sums[ROWS * COLS_MAX * LANES * TEAMS];
shared float squares[ROWS * LANES * TEAMS];

// Sums of this invocation, and of squares of the elements of rows, where those are normalized.
float own[ROWS][COLS_MAX];
float own_squares[ROWS];

// The first column of this invocation's team.
uint first_column()
{
    uint team = gl_LocalInvocationIndex / LANES;
    return (linear_group() * (TEAMS / SPLIT) + team / SPLIT) * (COLS / MATRICES);
}

void clear_sums()
{
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        own_squares[r] = 0.0;
        [[unroll]] for (uint c = 0u; c < COLS_MAX; ++c) {
            own[r][c] = 0.0;
        }
    }
}

// Adds the sums of all invocations and writes the results of the team whose first column is `first`. All teams have squares of
// the same elements where rows were read once, `together`; else each has those of the elements that it read.
void leave_sums(uint first, bool together)
{
    uint t = gl_LocalInvocationIndex;
    uint lane = t % LANES;
    uint team = t / LANES;
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
            uint teams = together ? TEAMS : SPLIT;
            uint begins = together ? 0u : team;
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
        float other = OTHER_BIAS(column);
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

#endif
