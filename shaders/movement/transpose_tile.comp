// Copies a strided block in which one dimension is contiguous in the source and another in the destination, by square
// tiles that pass through shared memory: both sides are accessed line by line.
// variant: b8   T=b8   HELD=uint   EXT_INT8=1
// variant: b16  T=b16  HELD=uint   EXT_INT16=1
// variant: b32  T=b32  HELD=uint
// variant: b64  T=b64  HELD=uvec2
// Elements of 16 bits, two at a time: sizes are even numbers of elements, strides and offsets are in words.
// variant: b32_pairs  T=b32  HELD=uint  PAIRS=1
#version 450
#include "types.glsl"

const uint TILE = 32u;  // rust: words along each side of a tile
#ifdef PAIRS
const uint EACH = 2u;   // elements of a word
#else
const uint EACH = 1u;
#endif
const uint SIDE = TILE * EACH;
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

shared HELD tile[SIDE][TILE + 1u];

void main()
{
    uint left = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x;
    // The whole group leaves, so no barrier waits for it.
    if (left >= p.n) {
        return;
    }
    uint columns = (p.across + SIDE - 1u) / SIDE;
    uint rows = (p.down + SIDE - 1u) / SIDE;
    uint x0 = left % columns * SIDE;
    left /= columns;
    uint y0 = left % rows * SIDE;
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
    for (uint k = line; k < SIDE; k += LINES) {
        uint x = x0 + EACH * lane;
        uint y = y0 + k;
        if (x < p.across && y < p.down) {
            tile[k][lane] = HELD(src[from + int(x / EACH) + int(y) * p.src_step]);
        }
    }
    barrier();
    for (uint k = line; k < TILE; k += LINES) {
        uint x = x0 + EACH * k;
        uint y = y0 + EACH * lane;
        if (x < p.across && y < p.down) {
            int at = to + int(y / EACH) + int(x) * p.dst_step;
#ifdef PAIRS
            uint a = tile[2u * lane][k];
            uint b = tile[2u * lane + 1u][k];
            dst[at] = (a & 0xffffu) | (b << 16u);
            dst[at + p.dst_step] = (a >> 16u) | (b & 0xffff0000u);
#else
            dst[at] = T(tile[lane][k]);
#endif
        }
    }
}
