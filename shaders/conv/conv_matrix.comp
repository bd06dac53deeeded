// Convolution of float16 by cooperative matrices of 16 x 16 x 16, summed in float32, by work-groups of four
// subgroups: 128 output channels of 128 elements, a subgroup 64 x 64, or (small) of eight: 32 of 64, a subgroup 16 x 32 in
// one of two slices of each step. Channels are summed within a tap. Weights are packed as [group][kd][kh][kw][ic][channels], channels rounded up to
// fours.
// variant: f16        T=f16 EXT_FLOAT16
// variant: f16_small  T=f16 EXT_FLOAT16 SMALL
#version 450
#include "cooperative.glsl"
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "unfold.glsl"

LOCAL_SIZE(0, 128);               // all subgroups
#include "large_tiles.glsl"

layout(set = 0, binding = 0, std430) readonly buffer X { float16_t x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { uvec2 w[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { float16_t bias[]; };
#include "channel.glsl"
#include "parts.glsl"
#define SUMMAND 5
#include "output.glsl"

#ifdef SMALL
const uint ROWS = 32u;  // rust SMALL_ROWS: channels of a small tile
const uint COLS = 64u;  // rust SMALL_COLS: elements of a small tile
const uint DEPTH = 64u;  // rust SMALL_DEPTH: input channels that a step of a small tile sums
const uint SLICES = 2u;
const uint SUBS = 8u;  // rust SMALL_SUBS: subgroups for a small tile
#define SUB_ROWS 1
#define SUB_COLS 2
#else
const uint ROWS = 128u;  // rust: channels of a tile
const uint COLS = 128u;  // rust: elements of a tile
const uint DEPTH = 32u;  // rust: input channels that a step sums
const uint SLICES = 1u;
const uint SUBS = 4u;  // rust: subgroups for a tile
#define SUB_ROWS 4
#define SUB_COLS 4
#endif
const uint THREADS = gl_WorkGroupSize.x;
const uint W_LOADS = ROWS * DEPTH / 4u / THREADS;
const uint X_LOADS = COLS * DEPTH / 4u / THREADS;
// Depths of the weights that all invocations load at once.
const uint W_STEP = THREADS / (ROWS / 4u);
// Quads from one depth of the weights to the next, and from one element of the input to the next; the padding
// keeps those of one column in different banks.
const uint W_LINE = ROWS / 4u + 2u;
const uint X_LINE = DEPTH / 4u + 2u;
const uint W_SIZE = DEPTH * W_LINE;
const uint X_SIZE = COLS * X_LINE;
// Sums leave in blocks of 16 lines of 16 float32 and a padding of 4.
const uint LINE = 10u;

// Tiles of weights and of the input; after the last step, a block of sums for every subgroup.
shared uvec2 tile[max(W_SIZE + X_SIZE, SUBS * 16u * LINE)];
#define TILE_HALVES 4u
#include "matrix.glsl"

// The words that one step loads before it fills the tiles: a compiler may give each half a register.
uvec2 w_next[W_LOADS];
uvec2 x_next[X_LOADS];

uvec2 words(f16vec4 v)
{
    return uvec2(packFloat2x16(v.xy), packFloat2x16(v.zw));
}

// Loads the quads of `channel` and those after it: of the weights at `w_at`, and of the elements at `x_at` if the
// tap is `inside` the input.
void load(uint channel, uint w_at, uint w_quad, bool inside, uint x_depth, int x_at, int in_plane)
{
    uint t = gl_LocalInvocationIndex;
    uint w_row = (p.oc + 3u) / 4u;
    [[unroll]] for (uint i = 0u; i < W_LOADS; ++i) {
        uint depth = channel + t / (ROWS / 4u) + i * W_STEP;
        bool there = w_quad < w_row && depth < p.ic;
        uvec2 v = w[there ? w_at + depth * w_row : 0u];
        w_next[i] = there ? v : uvec2(0u);
    }
    // One branch for all loads: those that are guarded one by one wait for one another.
    if (inside && channel + DEPTH <= p.ic) {
        [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
            f16vec4 v;
            [[unroll]] for (uint q = 0u; q < 4u; ++q) {
                v[q] = x[x_at + int(4u * i + q) * in_plane];
            }
            x_next[i] = words(v);
        }
        return;
    }
    [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
        f16vec4 v;
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            bool there = inside && channel + x_depth + 4u * i + q < p.ic;
            float16_t one = x[there ? x_at + int(4u * i + q) * in_plane : 0];
            v[q] = there ? one : float16_t(0.0);
        }
        x_next[i] = words(v);
    }
}

void put(uint x_depth)
{
    uint t = gl_LocalInvocationIndex;
    [[unroll]] for (uint i = 0u; i < W_LOADS; ++i) {
        tile[(t / (ROWS / 4u) + i * W_STEP) * W_LINE + t % (ROWS / 4u)] = w_next[i];
    }
    [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
        tile[W_SIZE + t % COLS * X_LINE + x_depth / 4u + i] = x_next[i];
    }
}

// The sum in line `line` and column `n` of the blocks of all slices, the first of them at `first`.
float sum_at(uint first, uint line, uint n)
{
    float sum = 0.0;
    [[unroll]] for (uint s = 0u; s < SLICES; ++s) {
        uvec2 pair = tile[first + s * (SUBS / SLICES * 16u * LINE) + line * LINE + n / 2u];
        sum += uintBitsToFloat(n % 2u == 0u ? pair.x : pair.y);
    }
    return sum;
}

// Writes this slice's share of the block of sums at `first`, whose first are of `channel` and `element`.
void leave(uint slice, uint first, uint channel, uint element, uint plane)
{
    uint group = batch_of_part() % p.groups;
    uint image = batch_of_part() / p.groups;
    for (uint q = slice * LANES + LANE; q < 256u; q += SLICES * LANES) {
        uint c = channel + q / 16u;
        uint n = element + q % 16u;
        if (c < p.oc && n < plane) {
            if (PARTS > 1u) {
                part_sums[first_of_part(p.oc, plane) + c * plane + n] = sum_at(first, q / 16u, q % 16u);
                continue;
            }
            uint to = group * p.oc + c;
            float b = bias_of(to);
            float slope = slope_of(to, p.groups * p.oc, p.act_a);
            uint at = n;
            if (PLAIN == 0u) {
                at = n / (p.ow * p.oh) * p.yd + n / p.ow % p.oh * p.yh + n % p.ow * p.yw;
            }
            at += p.y_first + (image * p.groups * p.oc + to) * p.yc;
            float v = plus_summand(sum_at(first, q / 16u, q % 16u) + b, at);
            y[at] = float16_t(activate(v, ACTIVATION, slope, p.act_b));
        }
    }
}

// The indices are literals: drivers keep an array that is indexed by variables in memory, not in registers.
#define LEAVE(I, J)                                                                                    \
    coopMatStore(sums[I][J], tile, own, LINE, ROW_MAJOR);                                              \
    wait_for_sums(SLICES > 1u);                                                                        \
    leave(slice, first, first_channel + sub_row + 16u * I, first_element + sub_col + 16u * J, plane);  \
    wait_for_sums(SLICES > 1u);

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint group = batch_of_part() % p.groups;
    uint image = batch_of_part() / p.groups;
    uint plane = p.ow * p.oh * p.od;
    uint first_channel = gl_WorkGroupID.y * ROWS;
    uint first_element = gl_WorkGroupID.x * COLS;
    uint slice = SUBGROUP / (SUBS / SLICES);
    uint sub = SUBGROUP % (SUBS / SLICES);
    uint sub_row = sub / 2u * (16u * SUB_ROWS);
    uint sub_col = sub % 2u * (16u * SUB_COLS);

    // This invocation loads X_LOADS quads of depths of one element.
    uint element = first_element + t % COLS;
    uint x_depth = t / COLS * 4u * X_LOADS;
    int z0 = int(element / (p.ow * p.oh)) * p.sd - p.pd;
    int v0 = int(element / p.ow % p.oh) * p.sh - p.ph;
    int u0 = int(element % p.ow) * p.sw - p.pw;
    int in_plane = p.id * p.ih * p.iw;
    int x_first = int((image * p.groups + group) * p.ic + x_depth) * in_plane;
    uint w_row = (p.oc + 3u) / 4u;
    uint w_quad = first_channel / 4u + t % (ROWS / 4u);
    uint w_at = group * p.kd * p.kh * p.kw * p.ic * w_row + w_quad;

    SUMS sums[SUB_ROWS][SUB_COLS];
    CLEAR(sums)
    uint of_tap = (p.ic + DEPTH - 1u) / DEPTH;
    uvec2 part = steps_of_part(p.kd * p.kh * p.kw * of_tap);
    uint tap = part.x / of_tap;
    uint channel = part.x % of_tap * DEPTH;
    uint kd = tap / (p.kh * p.kw);
    uint kh = tap / p.kw % p.kh;
    uint kw = tap % p.kw;
    w_at += tap * p.ic * w_row;
    // Every turn loads one step and sums the step before it.
    for (uint s = part.x; s <= part.y; ++s) {
        if (s < part.y) {
            int z = z0 + int(kd) * p.dd;
            int v = v0 + int(kh) * p.dh;
            int u = u0 + int(kw) * p.dw;
            bool inside = element < plane && uint(z) < uint(p.id) && uint(v) < uint(p.ih) && uint(u) < uint(p.iw);
            int x_at = x_first + int(channel) * in_plane + (z * p.ih + v) * p.iw + u;
            load(channel, w_at, w_quad, inside, x_depth, x_at, in_plane);
            channel += DEPTH;
            if (channel >= p.ic) {
                channel = 0u;
                w_at += p.ic * w_row;
                ++kw;
                if (kw == p.kw) {
                    kw = 0u;
                    ++kh;
                    if (kh == p.kh) {
                        kh = 0u;
                        ++kd;
                    }
                }
            }
        }
        if (s > part.x) {
            [[unroll]] for (uint at = 0u; at < DEPTH / SLICES; at += 16u) {
                uint k = slice * (DEPTH / SLICES) + at;
                LEFT left[SUB_ROWS];
                [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                    uint from = k * W_LINE + (sub_row + 16u * i) / 4u;
                    coopMatLoad(left[i], tile, from, W_LINE, COLUMN_MAJOR);
                }
                [[unroll]] for (uint j = 0u; j < SUB_COLS; ++j) {
                    RIGHT right;
                    uint from = W_SIZE + (sub_col + 16u * j) * X_LINE + k / 4u;
                    coopMatLoad(right, tile, from, X_LINE, COLUMN_MAJOR);
                    [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                        sums[i][j] = coopMatMulAdd(left[i], right, sums[i][j]);
                    }
                }
            }
            barrier();
        }
        if (s < part.y) {
            put(x_depth);
        }
        barrier();
    }

    uint first = sub * 16u * LINE;
    uint own = SUBGROUP * 16u * LINE;
    LEAVE_LEFT(0u)
#ifndef SMALL
    LEAVE_RIGHT(0u)
    LEAVE_LEFT(1u) LEAVE_RIGHT(1u)
    LEAVE_LEFT(2u) LEAVE_RIGHT(2u)
    LEAVE_LEFT(3u) LEAVE_RIGHT(3u)
#endif
}
