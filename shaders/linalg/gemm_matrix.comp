// Product of float16 matrices by cooperative matrices of 16 x 16 x 16, summed in float32. A work-group makes
// ROWS x COLS elements: 128 x 128 by four subgroups of 64 x 64; 64 x 64 by eight of 32 x 32, or 32 x 64 by eight of 16 x 32,
// each in one of two slices of each step.
// Read in groups of eight (x8) or four (x4) elements: sizes along contiguous axes and all strides are multiples of that.
// variant: f16x8_128  T=f16 EXT_FLOAT16 QUAD=uvec4 EACH=8 ROWS=128
// variant: f16x4_128  T=f16 EXT_FLOAT16 QUAD=uvec2 EACH=4 ROWS=128
// variant: f16x8_64   T=f16 EXT_FLOAT16 QUAD=uvec4 EACH=8 ROWS=64
// variant: f16x4_64   T=f16 EXT_FLOAT16 QUAD=uvec2 EACH=4 ROWS=64
// variant: f16x8_32   T=f16 EXT_FLOAT16 QUAD=uvec4 EACH=8 ROWS=32
// variant: f16x4_32   T=f16 EXT_FLOAT16 QUAD=uvec2 EACH=4 ROWS=32
#version 450
#include "cooperative.glsl"
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "product.glsl"

LOCAL_SIZE(0, 128);               // all subgroups
#include "tiles.glsl"

layout(set = 0, binding = 0, std430) readonly buffer A { QUAD a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { QUAD b[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { float16_t c[]; };
#define OUT4
#define VEC f16vec4
#include "parts.glsl"
#define SUMMAND 5
#include "output.glsl"

#if ROWS == 128
const uint COLS = 128u;  // rust COLS_128: columns of a tile of 128 rows
const uint DEPTH = 32u;  // rust DEPTH_128: depth that a step of it sums
const uint SUBS = 4u;    // rust SUBS_128: subgroups for it
#define SUB_ROWS 4
#define SUB_COLS 4
const uint SLICES = 1u;
#elif ROWS == 64
const uint COLS = 64u;   // rust COLS_64: columns of a tile of 64 rows
const uint DEPTH = 64u;  // rust DEPTH_64: depth that a step of it sums
const uint SUBS = 8u;    // rust SUBS_64: subgroups for it
#define SUB_ROWS 2
#define SUB_COLS 2
const uint SLICES = 2u;
#else
const uint COLS = 64u;    // rust COLS_32: columns of a tile of 32 rows
const uint DEPTH = 128u;  // rust DEPTH_32: depth that a step of it sums
const uint SUBS = 8u;     // rust SUBS_32: subgroups for it
#define SUB_ROWS 1
#define SUB_COLS 2
const uint SLICES = 2u;
#endif
const uint SUBS_ACROSS = 2u;
const uint THREADS = gl_WorkGroupSize.x;
const uint A_LOADS = ROWS * DEPTH / EACH / THREADS;
const uint B_LOADS = COLS * DEPTH / EACH / THREADS;
// Groups from one line of a tile to the next, along k or along the other axis; the padding keeps lines of one
// column in different banks.
const uint ALONG_K = (DEPTH + 8u) / EACH;
const uint A_ACROSS = (ROWS + 8u) / EACH;
const uint B_ACROSS = (COLS + 8u) / EACH;
const uint A_SIZE = max(ROWS * ALONG_K, DEPTH * A_ACROSS);
const uint B_SIZE = max(COLS * ALONG_K, DEPTH * B_ACROSS);
// Sums leave in blocks of 16 lines of 16 float32 and a padding of 4.
const uint LINE = 40u / EACH;

// Tiles of A and of B; after the last step, a block of sums for every subgroup.
shared QUAD tile[max(A_SIZE + B_SIZE, SUBS * 16u * LINE)];
#define TILE_HALVES uint(EACH)
#include "matrix.glsl"

// Line number `i` of a tile along k. Lines of 64 bytes lie 80 bytes apart: half of one's banks are those of the next, and
// none those of the fourth after it. So neighbouring invocations fill lines 0 and 4, 1 and 5, 2 and 6, 3 and 7.
uint line_of(uint i)
{
    return DEPTH == 32u ? (i & ~7u) | (i / 2u & 3u) | (i & 1u) * 4u : i;
}

// Group number `i` of the groups of a tile that this invocation loads: (place across, place along k). Lines have a number
// of groups that divides THREADS.
uvec2 place(bool along_k, uint across, uint i)
{
    const uint groups = DEPTH / EACH;
    uint t = gl_LocalInvocationIndex;
    return along_k ? uvec2(line_of(t / groups) + i * (THREADS / groups), EACH * (t % groups))
                   : uvec2(EACH * (t % (across / EACH)), t / (across / EACH) + i * (THREADS / (across / EACH)));
}

uint slot(bool along_k, uint line, uvec2 at)
{
    return along_k ? at.x * ALONG_K + at.y / EACH : at.y * line + at.x / EACH;
}

// The words that one step loads before it fills the tiles: a compiler may give each half a register.
QUAD a_next[A_LOADS];
QUAD b_next[B_LOADS];

// The group of A with row at.x and column at.y, and of B with column at.x and row at.y.
uint a_from(uvec2 at, uint first)
{
    return (first + at.x * p.a_row + at.y * p.a_col) / EACH;
}

uint b_from(uvec2 at, uint first)
{
    return (first + at.x * p.b_col + at.y * p.b_row) / EACH;
}

void load(uint k0, uint row, uint col, uint a_first, uint b_first)
{
    // One branch for all loads: those that are guarded one by one wait for one another.
    if (row + ROWS <= p.m && col + COLS <= p.n && k0 + DEPTH <= p.k) {
        [[unroll]] for (uint i = 0u; i < A_LOADS; ++i) {
            a_next[i] = a[a_from(place(A_COLUMNS == 0u, ROWS, i) + uvec2(row, k0), a_first)];
        }
        [[unroll]] for (uint i = 0u; i < B_LOADS; ++i) {
            b_next[i] = b[b_from(place(B_COLUMNS != 0u, COLS, i) + uvec2(col, k0), b_first)];
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < A_LOADS; ++i) {
        uvec2 at = place(A_COLUMNS == 0u, ROWS, i) + uvec2(row, k0);
        bool inside = at.x < p.m && at.y < p.k;
        QUAD v = a[inside ? a_from(at, a_first) : 0u];
        a_next[i] = inside ? v : QUAD(0);
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; ++i) {
        uvec2 at = place(B_COLUMNS != 0u, COLS, i) + uvec2(col, k0);
        bool inside = at.x < p.n && at.y < p.k;
        QUAD v = b[inside ? b_from(at, b_first) : 0u];
        b_next[i] = inside ? v : QUAD(0);
    }
}

void put()
{
    [[unroll]] for (uint i = 0u; i < A_LOADS; ++i) {
        tile[slot(A_COLUMNS == 0u, A_ACROSS, place(A_COLUMNS == 0u, ROWS, i))] = a_next[i];
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; ++i) {
        tile[A_SIZE + slot(B_COLUMNS != 0u, B_ACROSS, place(B_COLUMNS != 0u, COLS, i))] = b_next[i];
    }
}

// Four sums that begin with group `i` of the blocks of all slices.
vec4 sums_at(uint i)
{
    vec4 sums = vec4(0.0);
    [[unroll]] for (uint s = 0u; s < SLICES; ++s) {
        uint at = i + s * (SUBS / SLICES * 16u * LINE);
#if EACH == 8
        sums += uintBitsToFloat(tile[at]);
#else
        sums += uintBitsToFloat(uvec4(tile[at], tile[at + 1u]));
#endif
    }
    return sums;
}

// Writes this slice's share of the block of sums at `first`, whose first element is (row, col).
void leave(uint slice, uint first, uint row, uint col, uint y_first)
{
    for (uint q = slice * LANES + LANE; q < 64u; q += SLICES * LANES) {
        uint r = row + q / 4u;
        uint n = col + 4u * (q % 4u);
        if (r < p.m && n < p.n) {
            vec4 v = sums_at(first + q / 4u * LINE + q % 4u * (8u / EACH));
            uint to = (y_first + r * p.n + n) / 4u;
            if (PARTS > 1u) {
                part_sums[to] = v;
                continue;
            }
            v *= p.alpha;
            if (BIASED != 0u) {
                uint from = r * p.c_row + n * p.c_col;
                v += p.beta * vec4(c[from], c[from + p.c_col], c[from + 2u * p.c_col], c[from + 3u * p.c_col]);
            }
            y[to] = f16vec4(activate4(plus_summand(v, to), ACTIVATION, p.act_a, p.act_b));
        }
    }
}

// The indices are literals: drivers keep an array that is indexed by variables in memory, not in registers.
#define LEAVE(I, J)                                                                  \
    coopMatStore(sums[I][J], tile, own, LINE, ROW_MAJOR);                            \
    wait_for_sums(SLICES > 1u);                                                      \
    leave(slice, first, row + sub_row + 16u * I, col + sub_col + 16u * J, y_first);  \
    wait_for_sums(SLICES > 1u);

void main()
{
    uint batch = batch_of_part();
    uint row = gl_WorkGroupID.y * ROWS;
    uint col = gl_WorkGroupID.x * COLS;
    uint a_first = p.a_first + batch / p.inner * p.a_outer + batch % p.inner * p.a_inner;
    uint b_first = p.b_first + batch / p.inner * p.b_outer + batch % p.inner * p.b_inner;
    uint slice = SUBGROUP / (SUBS / SLICES);
    uint sub = SUBGROUP % (SUBS / SLICES);
    uint sub_row = sub / SUBS_ACROSS * (16u * SUB_ROWS);
    uint sub_col = sub % SUBS_ACROSS * (16u * SUB_COLS);
    const bool a_along = A_COLUMNS == 0u;
    const bool b_along = B_COLUMNS != 0u;

    SUMS sums[SUB_ROWS][SUB_COLS];
    CLEAR(sums)
    uvec2 part = DEPTH * steps_of_part((p.k + DEPTH - 1u) / DEPTH);
    load(part.x, row, col, a_first, b_first);
    put();
    barrier();
    // Every turn loads one step and sums the step before it.
    for (uint k0 = part.x + DEPTH; k0 <= part.y; k0 += DEPTH) {
        if (k0 < part.y) {
            load(k0, row, col, a_first, b_first);
        }
        [[unroll]] for (uint at = 0u; at < DEPTH / SLICES; at += 16u) {
            uint k = slice * (DEPTH / SLICES) + at;
            LEFT left[SUB_ROWS];
            [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                uint from = slot(a_along, A_ACROSS, uvec2(sub_row + 16u * i, k));
                if (a_along) {
                    coopMatLoad(left[i], tile, from, ALONG_K, ROW_MAJOR);
                } else {
                    coopMatLoad(left[i], tile, from, A_ACROSS, COLUMN_MAJOR);
                }
            }
            [[unroll]] for (uint j = 0u; j < SUB_COLS; ++j) {
                RIGHT right;
                uint from = A_SIZE + slot(b_along, B_ACROSS, uvec2(sub_col + 16u * j, k));
                if (b_along) {
                    coopMatLoad(right, tile, from, ALONG_K, COLUMN_MAJOR);
                } else {
                    coopMatLoad(right, tile, from, B_ACROSS, ROW_MAJOR);
                }
                [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                    sums[i][j] = coopMatMulAdd(left[i], right, sums[i][j]);
                }
            }
        }
        barrier();
        if (k0 < part.y) {
            put();
        }
        barrier();
    }

    uint first = sub * 16u * LINE;
    uint own = SUBGROUP * 16u * LINE;
    uint y_first = PARTS > 1u ? first_of_part(p.m, p.n) : p.y_first + batch * p.m * p.n;
    LEAVE_LEFT(0u)
#if SUB_ROWS > 1
    LEAVE_LEFT(1u)
#endif
#if SUB_ROWS > 2
    LEAVE_RIGHT(0u)
    LEAVE_RIGHT(1u)
    LEAVE_LEFT(2u) LEAVE_RIGHT(2u)
    LEAVE_LEFT(3u) LEAVE_RIGHT(3u)
#endif
}
