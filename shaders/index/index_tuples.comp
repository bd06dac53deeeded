// The number of the slice that each tuple of indices names, or the lowest integer where one is out of range.
#version 450
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
// Words of one index: 2 for int64, of which the lower one counts.
SPEC(1, uint, INDEX_WORDS, 2u);
SPEC(2, uint, TUPLE, 1u);      // indices of one tuple

layout(set = 0, binding = 0, std430) readonly buffer Index { int index[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Params
{
    uint sizes[8];
    uint n;
    uint per_batch;     // tuples of one element of the batch
    uint batch_slices;  // slices of it
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int slice = 0;
    bool inside = true;
    for (uint k = 0u; k < TUPLE; ++k) {
        int size = int(p.sizes[k]);
        int at = index[(i * TUPLE + k) * INDEX_WORDS];
        at = at < 0 ? at + size : at;
        inside = inside && at >= 0 && at < size;
        slice = slice * size + at;
    }
    y[i] = inside ? int(i / p.per_batch * p.batch_slices) + slice : int(0x80000000u);
}
