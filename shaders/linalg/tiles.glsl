// The specialization constants of products in tiles.
#ifndef ONEPOOL_TILES_GLSL
#define ONEPOOL_TILES_GLSL

SPEC(1, uint, A_COLUMNS, 0u);     // whether columns of A are contiguous, not rows
SPEC(2, uint, B_COLUMNS, 0u);     // whether columns of B are contiguous, not rows
SPEC(3, uint, BIASED, 0u);
SPEC(4, uint, ACTIVATION, 0u);

#endif
