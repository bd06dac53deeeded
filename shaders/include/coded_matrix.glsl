// Rows times columns of coded weights by cooperative matrices of 16 x 16 x 16: weights are decoded to float16 in local
// memory, sums are of float32. Whoever includes it declares
//   p.m, p.n, p.k              the sizes; k is a multiple of 8
//   uvec4 a[]                  rows of float16, eight in a word
//   struct Raw                 what is read of 16 weights of a column before the last step is summed
//   Raw fetch(column, k)       reads those from k on, a multiple of 16
//   void decode(Raw, uvec4[2]) makes them float16
//   void result(r, n, sum)     takes element (r, n)
#ifndef ONEPOOL_CODED_MATRIX_GLSL
#define ONEPOOL_CODED_MATRIX_GLSL

// A work-group makes SIDE x SIDE elements, each of its subgroups 16 * SUB_ROWS x 16 * SUB_COLS. SPLIT of them sum the same
// elements, each a part of every step along k: that keeps a unit busy that has one work-group.
#if SIDE == 128
const uint SUBS = 8u;  // rust SUBS_128: subgroups of a work-group of that side
#define SUB_ROWS 4
const uint SPLIT = 1u;
const uint DEPTH = 64u;
#elif SIDE == 64
const uint SUBS = 4u;  // rust SUBS_64: subgroups of a work-group of that side
#define SUB_ROWS 2
const uint SPLIT = 1u;
const uint DEPTH = 64u;
#else
const uint SUBS = 8u;  // rust SUBS_32: subgroups of a work-group of that side
#define SUB_ROWS 2
const uint SPLIT = 8u;
const uint DEPTH = 128u;
#endif
#define SUB_COLS 2
const uint ROWS = SIDE;
const uint COLS = SIDE;
const uint SUBS_ACROSS = COLS / (16u * SUB_COLS);
const uint THREADS = gl_WorkGroupSize.x;
// Words of eight elements of a tile of A, and runs of 16 weights of one of B.
const uint A_WORDS = ROWS * DEPTH / 8u;
const uint B_RUNS = COLS * DEPTH / 16u;
const uint A_LOADS = (A_WORDS + THREADS - 1u) / THREADS;
const uint B_LOADS = (B_RUNS + THREADS - 1u) / THREADS;
// Words from one line of a tile to the next: a padding of one keeps lines in different banks.
const uint LINE = DEPTH / 8u + 1u;
const uint A_SIZE = ROWS * LINE;
// Sums leave in blocks of 16 lines of 16 float32 and a padding of 4.
const uint SUM_LINE = 5u;

// Tiles of A and of B; after the last step, a block of sums for every subgroup.
shared uvec4 tile[max((ROWS + COLS) * LINE, SUBS * 16u * SUM_LINE)];

#define TILE_HALVES 8u
#include "matrix.glsl"

uvec4 a_next[A_LOADS];
Raw b_next[B_LOADS];

// Line and place along k of word `i` of A.
uvec2 a_place(uint i)
{
    return uvec2(i / (DEPTH / 8u), i % (DEPTH / 8u));
}

// Line of run `i` of B, and the place of its first word along k.
uvec2 b_place(uint i)
{
    return uvec2(i / (DEPTH / 16u), i % (DEPTH / 16u) * 2u);
}

// Reads one step. Lines beyond the last are read as the last: nothing takes their sums. What is done with what was read waits for
// it, so that is done when the tiles are filled.
void load(uint k0, uint row, uint col)
{
    [[unroll]] for (uint i = 0u; i < A_LOADS; ++i) {
        uint word = gl_LocalInvocationIndex + i * THREADS;
        uvec2 at = a_place(min(word, A_WORDS - 1u));
        uint k = k0 + at.y * 8u;
        a_next[i] = a[(min(row + at.x, p.m - 1u) * p.k + min(k, p.k - 8u)) / 8u];
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; ++i) {
        uint run = gl_LocalInvocationIndex + i * THREADS;
        uvec2 at = b_place(min(run, B_RUNS - 1u));
        b_next[i] = fetch(min(col + at.x, p.n - 1u), min(k0 + at.y * 8u, (p.k - 1u) & ~15u));
    }
}

// Fills the tiles with the step that begins at `k0`. Beyond the end of k, A is zero.
void put(uint k0)
{
    [[unroll]] for (uint i = 0u; i < A_LOADS; ++i) {
        uint word = gl_LocalInvocationIndex + i * THREADS;
        if (word < A_WORDS) {
            uvec2 at = a_place(word);
            tile[at.x * LINE + at.y] = k0 + at.y * 8u < p.k ? a_next[i] : uvec4(0u);
        }
    }
    [[unroll]] for (uint i = 0u; i < B_LOADS; ++i) {
        uint run = gl_LocalInvocationIndex + i * THREADS;
        if (run < B_RUNS) {
            uvec2 at = b_place(run);
            uvec4 words[2];
            decode(b_next[i], words);
            tile[A_SIZE + at.x * LINE + at.y] = words[0];
            tile[A_SIZE + at.x * LINE + at.y + 1u] = words[1];
        }
    }
}

// Hands on a share of the block whose first element is (row, col), which lies at `first` and, of the other parts of k,
// every SUBS / SPLIT blocks after it.
void leave(uint part, uint first, uint row, uint col)
{
    for (uint e = part * LANES + LANE; e < 256u; e += SPLIT * LANES) {
        uint r = row + e / 16u;
        uint n = col + e % 16u;
        if (r < p.m && n < p.n) {
            float v = 0.0;
            [[unroll]] for (uint s = 0u; s < SPLIT; ++s) {
                uint from = first + s * (SUBS / SPLIT * 16u * SUM_LINE) + e / 16u * SUM_LINE;
                v += uintBitsToFloat(tile[from + e % 16u / 4u][e % 4u]);
            }
            result(r, n, v);
        }
    }
}

// The indices are literals: drivers keep an array that is indexed by variables in memory, not in registers.
#define LEAVE(I, J)                                                        \
    coopMatStore(sums[I][J], tile, own, SUM_LINE, ROW_MAJOR);              \
    wait_for_sums(SPLIT > 1u);                                             \
    leave(part, first, row + sub_row + 16u * I, col + sub_col + 16u * J);  \
    wait_for_sums(SPLIT > 1u);

void main()
{
    uint row = gl_WorkGroupID.x * ROWS;
    uint col = gl_WorkGroupID.y * COLS;
    uint part = SUBGROUP / (SUBS / SPLIT);
    uint sub = SUBGROUP % (SUBS / SPLIT);
    uint sub_row = sub / SUBS_ACROSS * (16u * SUB_ROWS);
    uint sub_col = sub % SUBS_ACROSS * (16u * SUB_COLS);
    SUMS sums[SUB_ROWS][SUB_COLS];
    CLEAR(sums)
    load(0u, row, col);
    put(0u);
    barrier();
    // Every turn loads one step and sums the step before it.
    for (uint k0 = DEPTH; k0 < p.k + DEPTH; k0 += DEPTH) {
        if (k0 < p.k) {
            load(k0, row, col);
        }
        [[unroll]] for (uint step = 0u; step < DEPTH / SPLIT; step += 16u) {
            uint k = (part * (DEPTH / SPLIT) + step) / 8u;
            LEFT left[SUB_ROWS];
            [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                uint from = (sub_row + 16u * i) * LINE + k;
                coopMatLoad(left[i], tile, from, LINE, ROW_MAJOR);
            }
            [[unroll]] for (uint j = 0u; j < SUB_COLS; ++j) {
                RIGHT right;
                uint from = A_SIZE + (sub_col + 16u * j) * LINE + k;
                coopMatLoad(right, tile, from, LINE, COLUMN_MAJOR);
                [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                    sums[i][j] = coopMatMulAdd(left[i], right, sums[i][j]);
                }
            }
        }
        barrier();
        if (k0 < p.k) {
            put(k0);
        }
        barrier();
    }
    uint first = sub * 16u * SUM_LINE;
    uint own = SUBGROUP * 16u * SUM_LINE;
    LEAVE_LEFT(0u)
    LEAVE_LEFT(1u)
#if SUB_ROWS == 4
    LEAVE_LEFT(2u)
    LEAVE_LEFT(3u)
#endif
}

#endif
