// Which statistics of rows are stored: the sum of what is wanted.
#ifndef ONEPOOL_STATS_GLSL
#define ONEPOOL_STATS_GLSL

#define STATS_MEANS 1u     // rust MEANS: means
#define STATS_INVERSES 2u  // rust INVERSES: inverses of deviations

#endif
