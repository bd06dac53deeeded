// Copies a strided block in which one dimension is contiguous in the source and another in the destination, by square
// tiles that pass through shared memory: both sides are accessed line by line.
// variant: b8   T=b8   HELD=uint   EXT_INT8=1
// variant: b16  T=b16  HELD=uint   EXT_INT16=1
// variant: b32  T=b32  HELD=uint
// variant: b64  T=b64  HELD=uvec2
// Elements of 16 bits, two at a time: sizes are even numbers of elements, strides and offsets are in words.
// variant: b32_pairs  T=b32  HELD=uint  PAIRS=1
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"

const uint TILE = 32u;  // rust: words along each side of a tile
#ifdef PAIRS
const uint EACH = 2u;   // elements of a word
#else
const uint EACH = 1u;
#endif
const uint SIDE = TILE * EACH;
const uint LINES = 4u;  // lines of a tile at a time
#define MAX_OUTER 4     // rust: dimensions besides those two

layout(local_size_x = 128) in;

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

// Writes column `k` of the tile's words to `at`: of this invocation's element, or pair of elements.
void leave(uint k, uint lane, int at)
{
#ifdef PAIRS
    uint a = tile[2u * lane][k];
    uint b = tile[2u * lane + 1u][k];
    dst[at] = (a & 0xffffu) | (b << 16u);
    dst[at + p.dst_step] = (a >> 16u) | (b & 0xffff0000u);
#else
    dst[at] = T(tile[lane][k]);
#endif
}

void main()
{
    uint left = gl_WorkGroupID.x + gl_WorkGroupID.y * gl_NumWorkGroups.x;
    // The whole group leaves, so no barrier waits for it.
    if (left >= p.n) {
        return;
    }
    uint columns = (p.across + SIDE - 1u) / SIDE;
    uint rows = (p.down + SIDE - 1u) / SIDE;
    // Tiles that are written side by side come one after another.
    uint y0 = left % rows * SIDE;
    left /= rows;
    uint x0 = left % columns * SIDE;
    left /= columns;
    int from = p.src_offset;
    int to = p.dst_offset;
    for (uint d = MAX_OUTER; d-- > 0u && left > 0u;) {
        uint next = left / p.outer[d];
        int at = int(left - next * p.outer[d]);
        from += at * p.outer_src[d];
        to += at * p.outer_dst[d];
        left = next;
    }
    uint lane = gl_LocalInvocationIndex % TILE;
    uint line = gl_LocalInvocationIndex / TILE;
    // One branch for all loads and one for all stores: those that are guarded one by one wait for one another.
    bool whole = x0 + SIDE <= p.across && y0 + SIDE <= p.down;
    HELD words[SIDE / LINES];
    uint x = x0 + EACH * lane;
    int at = from + int(x / EACH) + int(y0 + line) * p.src_step;
    if (whole) {
        [[unroll]] for (uint k = 0u; k < SIDE / LINES; ++k) {
            words[k] = HELD(src[at + int(k * LINES) * p.src_step]);
        }
    } else {
        [[unroll]] for (uint k = 0u; k < SIDE / LINES; ++k) {
            if (x < p.across && y0 + line + k * LINES < p.down) {
                words[k] = HELD(src[at + int(k * LINES) * p.src_step]);
            }
        }
    }
    [[unroll]] for (uint k = 0u; k < SIDE / LINES; ++k) {
        tile[line + k * LINES][lane] = words[k];
    }
    barrier();
    uint y = y0 + EACH * lane;
    at = to + int(y / EACH) + int(x0 + EACH * line) * p.dst_step;
    int step = int(EACH * LINES) * p.dst_step;
    if (whole) {
        [[unroll]] for (uint k = 0u; k < TILE / LINES; ++k) {
            leave(line + k * LINES, lane, at + int(k) * step);
        }
    } else if (y < p.down) {
        [[unroll]] for (uint k = 0u; k < TILE / LINES; ++k) {
            if (x0 + EACH * (line + k * LINES) < p.across) {
                leave(line + k * LINES, lane, at + int(k) * step);
            }
        }
    }
}
