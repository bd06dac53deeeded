// The statistics of rows to store: a sum of these flags.
#ifndef ONEPOOL_STATS_GLSL
#define ONEPOOL_STATS_GLSL

#define STATS_MEANS 1u     // rust MEANS: means
#define STATS_INVERSES 2u  // rust INVERSES: inverses of deviations

#endif
