// What all kernels of recurrent layers are specialized by.
#ifndef ONEPOOL_CELL_SPEC_GLSL
#define ONEPOOL_CELL_SPEC_GLSL

#include "spec.glsl"
#include "cell_kind.glsl"

SPEC(1, uint, KIND, 0u);
SPEC(2, uint, BIASED, 0u);
SPEC(3, uint, PEEPHOLES, 0u);
SPEC(4, uint, LENGTHS, 0u);
SPEC(5, uint, CLIPPED, 0u);
SPEC(6, uint, INPUT_FORGET, 0u);
SPEC(7, uint, F0, FN_SIGMOID);  // functions f, g and h of the first direction, then of the second
SPEC(8, uint, G0, FN_TANH);
SPEC(9, uint, H0, FN_TANH);
SPEC(10, uint, F1, FN_SIGMOID);
SPEC(11, uint, G1, FN_TANH);
SPEC(12, uint, H1, FN_TANH);
SPEC(13, uint, INITIAL, 0u);    // which initial states are given
SPEC(14, uint, LAST, 0u);       // which last states are stored

#define STATE_H 1u  // rust: state h, where states are wanted
#define STATE_C 2u  // rust: state c, where states are wanted

const uint GATES = KIND == KIND_RNN ? 1u : (KIND == KIND_LSTM ? 4u : 3u);

#endif
