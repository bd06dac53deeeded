// The specialization constants of both steps of TopK.
#ifndef ONEPOOL_TOP_K_GLSL
#define ONEPOOL_TOP_K_GLSL

SPEC(1, uint, LARGEST, 1u);
SPEC(2, uint, LAST, 0u);      // writes the outputs: positions are int64, lines lie as those of the input

#endif
