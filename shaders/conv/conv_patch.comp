// Convolution of 3 x 3 taps, stride 1, of float16 by cooperative matrices of 16 x 16 x 16, summed in float32: a work-group of four
// subgroups reads a patch of the input with its border once for all taps. 64 output channels of 8 rows of 16 elements, a
// subgroup 32 of 4 rows, or 32 or 16 of 16 rows, a subgroup of 4. Weights are packed as those of conv_matrix.comp.
// variant: f16_64  T=f16 EXT_FLOAT16 CHANNELS=64
// variant: f16_32  T=f16 EXT_FLOAT16 CHANNELS=32
// variant: f16_16  T=f16 EXT_FLOAT16 CHANNELS=16
#version 450
#pragma use_vulkan_memory_model
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "unfold.glsl"

LOCAL_SIZE(0, 128);               // all subgroups
#include "large_tiles.glsl"

layout(set = 0, binding = 0, std430) readonly buffer X { float16_t x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { uvec2 w[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { float16_t bias[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { float16_t y[]; };
#define SUMMAND 4
#include "summand.glsl"

#if CHANNELS == 64
const uint LINES = 8u;   // rust: rows of elements of a tile of 64 channels
const uint SUBS_DOWN = 2u;
#else
const uint LINES = 16u;  // rust MORE_LINES: rows of elements of a tile of fewer channels
const uint SUBS_DOWN = 1u;
#endif
const uint ACROSS = 16u;  // rust: elements of a row of a tile
const uint DEPTH = 16u;   // rust: input channels that a step sums
const uint SUBS = 4u;     // rust: subgroups for a tile
#if CHANNELS == 16
#define SUB_ROWS 1
#else
#define SUB_ROWS 2
#endif
#define SUB_COLS 4
const uint THREADS = gl_WorkGroupSize.x;
const uint TAPS = 9u;
// Elements of a row of the patch, and of all of it.
const uint WIDTH = ACROSS + 2u;
const uint PIXELS = (LINES + 2u) * WIDTH;
const uint W_QUADS = uint(CHANNELS) / 4u;
const uint W_LOADS = (TAPS * DEPTH * W_QUADS + THREADS - 1u) / THREADS;
const uint X_LOADS = (PIXELS * DEPTH / 4u + THREADS - 1u) / THREADS;
// Quads from one depth of the weights to the next, and from one element of the patch to the next; the padding keeps
// those of one column in different banks.
const uint W_LINE = W_QUADS + 2u;
const uint X_LINE = DEPTH / 4u + 2u;
const uint W_SIZE = TAPS * DEPTH * W_LINE;
const uint X_SIZE = PIXELS * X_LINE;
// Sums leave in blocks of 16 lines of 16 float32 and a padding of 4.
const uint LINE = 10u;

// Weights and the patch; after the last step, a block of sums for every subgroup.
shared uvec2 tile[max(W_SIZE + X_SIZE, SUBS * 16u * LINE)];
#define TILE_HALVES 4u
#include "matrix.glsl"

// The words that one step loads before it fills the tiles: a compiler may give each half a register.
uvec2 w_next[W_LOADS];
uvec2 x_next[X_LOADS];
// Where the elements that this invocation loads begin; negative outside the input.
int x_from[X_LOADS];

// Number `i` of the quads of the patch that this invocation loads: (element, quad of channels).
uvec2 place(uint i)
{
    uint at = gl_LocalInvocationIndex + i * THREADS;
    return uvec2(at % PIXELS, at / PIXELS);
}

uvec2 words(f16vec4 v)
{
    return uvec2(packFloat2x16(v.xy), packFloat2x16(v.zw));
}

// Loads the quads of `channel` and those after it; `w_first` is the first of the weights of this invocation's quad.
void load(uint channel, uint w_first, bool w_inside, int in_plane)
{
    uint w_row = (p.oc + 3u) / 4u;
    [[unroll]] for (uint i = 0u; i < W_LOADS; ++i) {
        uint line = gl_LocalInvocationIndex / W_QUADS + i * (THREADS / W_QUADS);
        uint depth = channel + line % DEPTH;
        bool there = w_inside && line < TAPS * DEPTH && depth < p.ic;
        uvec2 v = w[there ? w_first + (line / DEPTH * p.ic + depth) * w_row : 0u];
        w_next[i] = there ? v : uvec2(0u);
    }
    [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
        uint first = channel + 4u * place(i).y;
        f16vec4 v;
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            bool there = x_from[i] >= 0 && first + q < p.ic;
            float16_t one = x[there ? x_from[i] + int(first + q) * in_plane : 0];
            v[q] = there ? one : float16_t(0.0);
        }
        x_next[i] = words(v);
    }
}

void put()
{
    [[unroll]] for (uint i = 0u; i < W_LOADS; ++i) {
        uint line = gl_LocalInvocationIndex / W_QUADS + i * (THREADS / W_QUADS);
        if (line < TAPS * DEPTH) {
            tile[line * W_LINE + gl_LocalInvocationIndex % W_QUADS] = w_next[i];
        }
    }
    [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
        uvec2 at = place(i);
        if (at.y < DEPTH / 4u) {
            tile[W_SIZE + at.x * X_LINE + at.y] = x_next[i];
        }
    }
}

float sum_at(uint first, uint line, uint n)
{
    uvec2 pair = tile[first + line * LINE + n / 2u];
    return uintBitsToFloat(n % 2u == 0u ? pair.x : pair.y);
}

// Writes the block of sums at `first`, whose first are of `channel` and `element`, in row `line`.
void leave(uint first, uint channel, uint line, uint element)
{
    uint group = gl_WorkGroupID.z % p.groups;
    uint image = gl_WorkGroupID.z / p.groups;
    for (uint q = LANE; q < 256u; q += LANES) {
        uint c = channel + q / 16u;
        uint n = element + q % 16u;
        if (c < p.oc && n < p.ow && line < p.oh) {
            uint to = group * p.oc + c;
            uint at = p.y_first + (image * p.groups * p.oc + to) * p.yc + line * p.ow + n;
            float b = BIASED != 0u ? float(bias[to]) : 0.0;
            float v = plus_summand(sum_at(first, q / 16u, q % 16u) + b, at);
            y[at] = float16_t(activate(v, ACTIVATION, p.act_a, p.act_b));
        }
    }
}

// The indices are literals: drivers keep an array that is indexed by variables in memory, not in registers.
#define LEAVE(I, J)                                                                             \
    coopMatStore(sums[I][J], tile, first, LINE, ROW_MAJOR);                                     \
    wait_for_sums(false);                                                                       \
    leave(first, first_channel + sub_row + 16u * I, first_line + sub_line + J, first_element);  \
    wait_for_sums(false);

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint group = gl_WorkGroupID.z % p.groups;
    uint image = gl_WorkGroupID.z / p.groups;
    uint patches = (p.ow + ACROSS - 1u) / ACROSS;
    uint first_channel = gl_WorkGroupID.y * uint(CHANNELS);
    uint first_element = gl_WorkGroupID.x % patches * ACROSS;
    uint first_line = gl_WorkGroupID.x / patches * LINES;
    uint sub_row = SUBGROUP % SUBS_DOWN * (16u * SUB_ROWS);
    uint sub_line = SUBGROUP / SUBS_DOWN * SUB_COLS;

    int in_plane = p.ih * p.iw;
    int x_first = int((image * p.groups + group) * p.ic) * in_plane;
    [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
        uvec2 at = place(i);
        int v = int(first_line + at.x / WIDTH) - p.ph;
        int u = int(first_element + at.x % WIDTH) - p.pw;
        bool inside = at.y < DEPTH / 4u && uint(v) < uint(p.ih) && uint(u) < uint(p.iw);
        x_from[i] = inside ? x_first + v * p.iw + u : -1;
    }
    uint w_row = (p.oc + 3u) / 4u;
    uint w_quad = first_channel / 4u + t % W_QUADS;
    uint w_first = group * TAPS * p.ic * w_row + w_quad;

    SUMS sums[SUB_ROWS][SUB_COLS];
    [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
        [[unroll]] for (uint j = 0u; j < SUB_COLS; ++j) {
            sums[i][j] = NO_SUMS;
        }
    }
    uint steps = (p.ic + DEPTH - 1u) / DEPTH;
    // Every turn loads one step and sums the step before it.
    for (uint s = 0u; s <= steps; ++s) {
        if (s < steps) {
            load(s * DEPTH, w_first, w_quad < w_row, in_plane);
        }
        if (s > 0u) {
            [[unroll]] for (uint tap = 0u; tap < TAPS; ++tap) {
                LEFT left[SUB_ROWS];
                [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                    uint from = tap * DEPTH * W_LINE + (sub_row + 16u * i) / 4u;
                    coopMatLoad(left[i], tile, from, W_LINE, COLUMN_MAJOR);
                }
                [[unroll]] for (uint j = 0u; j < SUB_COLS; ++j) {
                    RIGHT right;
                    uint from = W_SIZE + ((sub_line + j + tap / 3u) * WIDTH + tap % 3u) * X_LINE;
                    coopMatLoad(right, tile, from, X_LINE, COLUMN_MAJOR);
                    [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                        sums[i][j] = coopMatMulAdd(left[i], right, sums[i][j]);
                    }
                }
            }
            barrier();
        }
        if (s < steps) {
            put();
        }
        barrier();
    }

    uint first = SUBGROUP * 16u * LINE;
    LEAVE(0u, 0u)
    LEAVE(0u, 1u)
    LEAVE(0u, 2u)
    LEAVE(0u, 3u)
#if SUB_ROWS > 1
    LEAVE(1u, 0u)
    LEAVE(1u, 1u)
    LEAVE(1u, 2u)
    LEAVE(1u, 3u)
#endif
}
