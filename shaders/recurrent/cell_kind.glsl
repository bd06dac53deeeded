// What a time step computes.
#ifndef ONEPOOL_CELL_KIND_GLSL
#define ONEPOOL_CELL_KIND_GLSL

// enum: Kind
#define KIND_RNN 0u           // an RNN's state
#define KIND_LSTM 1u          // an LSTM's states
#define KIND_GRU 2u           // a GRU's state, reset after the product with it
#define KIND_GRU_BEFORE 3u    // a GRU that resets its state before: of a single cell the gates and the scaled state
#define KIND_GRU_COMBINED 4u  // a single cell with the product of the scaled state

#endif
