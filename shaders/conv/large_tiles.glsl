// The specialization constants of convolutions as products in large tiles.
#ifndef ONEPOOL_LARGE_TILES_GLSL
#define ONEPOOL_LARGE_TILES_GLSL

SPEC(1, uint, PLAIN, 0u);         // whether the output's elements are contiguous
SPEC(2, uint, BIASED, 0u);
SPEC(3, uint, ACTIVATION, 0u);

#endif
