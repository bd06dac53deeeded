// One vector for an invocation, or with GROUPED for a work-group, with the sum of a value over it (total.glsl). Include it after
// spec.glsl and grid.glsl.
#ifndef ONEPOOL_LINES_GLSL
#define ONEPOOL_LINES_GLSL

#ifdef GROUPED
layout(local_size_x = 256) in;
#define vector_index() linear_group()
#define START gl_LocalInvocationIndex
const uint STEP = 256u;  // from one element of an invocation to its next
#define LANES STEP
#include "total.glsl"
#else
LOCAL_SIZE(0, 8);
#define vector_index() linear_id()
#define START 0u
const uint STEP = 1u;

float total(float v)
{
    return v;
}
#endif

#endif
