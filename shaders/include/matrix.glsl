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
#define PRODUCTS(left, right) ((left) * (right))
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor
#define LANES gl_SubgroupSize
#define LANE gl_SubgroupInvocationID
#define SUBGROUP gl_SubgroupID
#endif

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
