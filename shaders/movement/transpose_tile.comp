// Copies a strided block in which one dimension is contiguous in the source and another in the destination, by square
// tiles that pass through shared memory: both sides are accessed line by line.
// variant: b8   T=b8   HELD=uint   EXT_INT8=1
// variant: b16  T=b16  HELD=uint   EXT_INT16=1
// variant: b32  T=b32  HELD=uint
// variant: b64  T=b64  HELD=uvec2
#version 450
#include "types.glsl"

const uint TILE = 32u;  // rust: elements along each side of a tile
const uint LINES = 8u;  // lines of a tile at a time
#define MAX_OUTER 4     // rust: dimensions besides those two

layout(local_size_x = 256) in;

layout(set = 0, binding = 0, std430) readonly buffer Src { T src[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Dst { T dst[]; };

layout(push_constant) uniform Params
{
    uint outer[MAX_OUTER];
    int outer_src[MAX_OUTER];
    int outer_dst[MAX_OUTER];
    uint across;      // size of the dimension that is contiguous in the source
    uint down;        // size of that which is contiguous in the destination
    int src_step;     // stride of `down` in the source
    int dst_step;     // stride of `across` in the destination
    int src_offset;
    int dst_offset;
    uint n;           // tiles
} p;

shared HELD tile[TILE][TILE + 1u];

void main()
{
    uint left = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x;
    // The whole group leaves, so no barrier waits for it.
    if (left >= p.n) {
        return;
    }
    uint columns = (p.across + TILE - 1u) / TILE;
    uint rows = (p.down + TILE - 1u) / TILE;
    uint x0 = left % columns * TILE;
    left /= columns;
    uint y0 = left % rows * TILE;
    left /= rows;
    int from = p.src_offset;
    int to = p.dst_offset;
    for (uint d = MAX_OUTER; d-- > 0u;) {
        uint next = left / p.outer[d];
        int at = int(left - next * p.outer[d]);
        from += at * p.outer_src[d];
        to += at * p.outer_dst[d];
        left = next;
    }
    uint lane = gl_LocalInvocationIndex % TILE;
    uint line = gl_LocalInvocationIndex / TILE;
    for (uint k = line; k < TILE; k += LINES) {
        uint x = x0 + lane;
        uint y = y0 + k;
        if (x < p.across && y < p.down) {
            tile[k][lane] = HELD(src[from + int(x) + int(y) * p.src_step]);
        }
    }
    barrier();
    for (uint k = line; k < TILE; k += LINES) {
        uint x = x0 + k;
        uint y = y0 + lane;
        if (x < p.across && y < p.down) {
            dst[to + int(y) + int(x) * p.dst_step] = T(tile[lane][k]);
        }
    }
}
