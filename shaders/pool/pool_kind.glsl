// What a pool makes of the elements under its window.
#ifndef ONEPOOL_POOL_KIND_GLSL
#define ONEPOOL_POOL_KIND_GLSL

// enum: Kind
#define KIND_MAX 0u   // the largest
#define KIND_MEAN 1u  // their mean
#define KIND_L1 2u    // the sum of |x|
#define KIND_L2 3u    // the root of the sum of squares
#define KIND_LP 4u    // the norm of any power

#endif
