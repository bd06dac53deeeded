// Copies a strided block of elements: any transpose, slice, concatenation, padding or tiling of bytes.
// variant: b8    T=b8   EXT_INT8=1
// variant: b16   T=b16  EXT_INT16=1
// variant: b32   T=b32
// variant: b64   T=b64
// variant: b128  T=b128
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
#define MAX_RANK 8  // rust: dimensions of a block
SPEC(1, uint, RANK, 8u);

layout(set = 0, binding = 0, std430) readonly buffer Src { T src[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Dst { T dst[]; };

layout(push_constant) uniform Params
{
    uint dims[MAX_RANK];
    int src_strides[MAX_RANK];
    int dst_strides[MAX_RANK];
    uint n;
    int src_offset;
    int dst_offset;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int from = p.src_offset;
    int to = p.dst_offset;
    uint left = i;
    for (uint d = RANK; d-- > 0u;) {
        uint size = p.dims[d];
        uint outer = left / size;
        int at = int(left - outer * size);
        from += at * p.src_strides[d];
        to += at * p.dst_strides[d];
        left = outer;
    }
    dst[to] = src[from];
}
