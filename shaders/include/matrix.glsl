// Cooperative matrices of float16, 16 x 16 x 16, with sums in float32. PLAIN_MATRICES takes plain arithmetic instead of matrices. Declare
// `tile`, in which they lie, and TILE_HALVES, the elements of a word of it, before.
#ifndef ONEPOOL_MATRIX_GLSL
#define ONEPOOL_MATRIX_GLSL

#ifdef PLAIN_MATRICES
#include "plain_matrix.glsl"
#else
#define LEFT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseB>
#define SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>
#define NO_SUMS coopmat<float, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(0.0)
#define SUMS_OF(value) SUMS(value)
#define PRODUCTS(left, right) ((left) * (right))
// Adds to every element of a row of `sums` the elements of that row of `left`.
#define ADD_ROWS(left, sums) coopMatMulAdd(left, RIGHT(float16_t(1.0)), sums)
// Of one element of sums; not where it is NaN.
#define AT_MOST(element, most) ((element) <= (most))
// Whether `yes` is true in the whole subgroup, which all of its invocations ask; of subgroup vote.
#define all_of_subgroup(yes) subgroupAll(yes)
// Stores sums in float16; of devices that have sums of both types.
#define store_halves(sums, first, stride) \
    coopMatStore(coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(sums), tile, first, stride, ROW_MAJOR)
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor
#define LANES gl_SubgroupSize
#define LANE gl_SubgroupInvocationID
#define SUBGROUP gl_SubgroupID
// Whether a subgroup may wait where others do not.
#define APART true
#endif

// No sums in all matrices of a subgroup, SUB_ROWS by SUB_COLS.
#define CLEAR(sums)                                        \
    [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {      \
        [[unroll]] for (uint j = 0u; j < SUB_COLS; ++j) {  \
            sums[i][j] = NO_SUMS;                          \
        }                                                  \
    }
// The first two matrices of a row leave, or the last two; a file defines LEAVE for one.
#define LEAVE_LEFT(I) LEAVE(I, 0u) LEAVE(I, 1u)
#define LEAVE_RIGHT(I) LEAVE(I, 2u) LEAVE(I, 3u)

// Waits until the sums of the same elements are in `tile`: those of the subgroup, or of all where `several` have a part of them.
void wait_for_sums(bool several)
{
#ifndef PLAIN_MATRICES
    if (!several) {
        controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
        return;
    }
#endif
    barrier();
}

#endif
