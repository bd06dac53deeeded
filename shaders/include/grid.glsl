// A one-dimensional problem folded over x and y, as kernel::grid_1d lays it out.
// Macros, because gl_WorkGroupSize cannot be read before the kernel declares its local size.
#ifndef ONEPOOL_GRID_GLSL
#define ONEPOOL_GRID_GLSL

// The number of this invocation (uint). It can exceed the problem: compare it with the problem's length.
#define linear_id() \
    (gl_GlobalInvocationID.x + gl_GlobalInvocationID.y * (gl_NumWorkGroups.x * gl_WorkGroupSize.x))

// The number of this work-group (uint).
#define linear_group() (gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x)

#endif
