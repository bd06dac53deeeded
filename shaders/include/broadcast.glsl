// Places of two operands that are broadcast together, by the parameters sizes[NEST_MAX], a_strides[NEST_MAX] and
// b_strides[NEST_MAX]. Include it after spec.glsl.
#ifndef ONEPOOL_BROADCAST_GLSL
#define ONEPOOL_BROADCAST_GLSL

#include "nest.glsl"

// How an operand is read.
// enum: Kind
#define KIND_DENSE 0u    // element i
#define KIND_SCALAR 1u   // always element 0
#define KIND_STRIDED 2u  // through its strides

SPEC(2, uint, A_KIND, 0);
SPEC(3, uint, B_KIND, 0);
SPEC(4, int, RANK, 1);

#define ADVANCE(d, c) sa += c * p.a_strides[d]; sb += c * p.b_strides[d];
// Declares `at_a` and `at_b`, where element `i` of the output has its operands.
#define PLACES(i)                                              \
    int at_a = A_KIND == KIND_DENSE ? int(i) : 0;              \
    int at_b = B_KIND == KIND_DENSE ? int(i) : 0;              \
    if (A_KIND == KIND_STRIDED || B_KIND == KIND_STRIDED) {    \
        int sa = 0;                                            \
        int sb = 0;                                            \
        FOR_EACH_COORDINATE(RANK, i, ADVANCE)                  \
        at_a = A_KIND == KIND_STRIDED ? sa : at_a;             \
        at_b = B_KIND == KIND_STRIDED ? sb : at_b;             \
    }

#endif
