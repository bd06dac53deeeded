// The depth of a product shared out between PARTS work-groups of neighbouring numbers along z: each writes its sums, and
// sum_parts.comp adds them. A kernel writes them as it does the output: with OUT4 in whole quads. Include it after spec.glsl.
#ifndef ONEPOOL_PARTS_GLSL
#define ONEPOOL_PARTS_GLSL

#ifdef OUT4
#define PART vec4
#else
#define PART float
#endif

SPEC(16, uint, PARTS, 1u);

layout(set = 0, binding = 4, std430) writeonly buffer Sums { PART part_sums[]; };

// Which product of the batch.
uint batch_of_part()
{
    return gl_WorkGroupID.z / PARTS;
}

// The first of `steps` steps that this work-group sums, and the first after them.
uvec2 steps_of_part(uint steps)
{
    uint each = (steps + PARTS - 1u) / PARTS;
    uint first = min(gl_WorkGroupID.z % PARTS * each, steps);
    return uvec2(first, min(first + each, steps));
}

// Where this work-group's sums of `rows` by `cols` elements begin: parts, products, rows, columns.
uint first_of_part(uint rows, uint cols)
{
    uint batches = gl_NumWorkGroups.z / PARTS;
    return (gl_WorkGroupID.z % PARTS * batches + batch_of_part()) * rows * cols;
}

#endif
