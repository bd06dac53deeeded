// Copies blocks as transpose_tile.comp does, of elements of 16 bits, two at a time: words that are whole on both sides.
#version 450

const uint TILE = 64u;  // rust: elements along each side of a tile
const uint WORDS = TILE / 2u;
const uint LINES = 8u;  // lines of a tile at a time
#define MAX_OUTER 4     // rust: dimensions besides those two

layout(local_size_x = 256) in;

layout(set = 0, binding = 0, std430) readonly buffer Src { uint src[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Dst { uint dst[]; };

// Sizes in elements, which are even; strides and offsets in words.
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

shared uint tile[TILE][WORDS + 1u];

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
    uint lane = gl_LocalInvocationIndex % WORDS;
    uint line = gl_LocalInvocationIndex / WORDS;
    for (uint k = line; k < TILE; k += LINES) {
        uint x = x0 + 2u * lane;
        uint y = y0 + k;
        if (x < p.across && y < p.down) {
            tile[k][lane] = src[from + int(x / 2u) + int(y) * p.src_step];
        }
    }
    barrier();
    for (uint k = line; k < WORDS; k += LINES) {
        uint x = x0 + 2u * k;
        uint y = y0 + 2u * lane;
        if (x < p.across && y < p.down) {
            uint a = tile[2u * lane][k];
            uint b = tile[2u * lane + 1u][k];
            int at = to + int(y / 2u) + int(x) * p.dst_step;
            dst[at] = (a & 0xffffu) | (b << 16u);
            dst[at + p.dst_step] = (a >> 16u) | (b & 0xffff0000u);
        }
    }
}
