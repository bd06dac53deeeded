// Convolution of 3 x 3 taps, stride 1, of float16 by cooperative matrices of 16 x 16 x 16, summed in float32: a work-group of four
// subgroups reads a patch of the input with its border once for all taps, and the weights of one tap at a time. It makes 64, 32 or
// 16 output channels of 8 rows of 16 elements, a subgroup 2 of the rows. Weights are packed as [group][kh][kw][ic][channels],
// channels rounded up to eights.
// variant: f16_64       T=f16 EXT_FLOAT16 CHANNELS=64 DEPTH=16
// variant: f16_32       T=f16 EXT_FLOAT16 CHANNELS=32 DEPTH=16
// variant: f16_32_deep  T=f16 EXT_FLOAT16 CHANNELS=32 DEPTH=32
// variant: f16_16       T=f16 EXT_FLOAT16 CHANNELS=16 DEPTH=16
#version 450
#include "cooperative.glsl"
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "unfold.glsl"

LOCAL_SIZE(0, 128);               // all subgroups
#include "large_tiles.glsl"

layout(set = 0, binding = 0, std430) readonly buffer X { float16_t x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { uvec4 w[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { float16_t bias[]; };
#include "channel.glsl"
#define SUMMAND 4
#include "output.glsl"

const uint LINES = 8u;    // rust: rows of elements of a tile
const uint ACROSS = 16u;  // rust: elements of a row of a tile
const uint SUBS = 4u;     // rust: subgroups for a tile
const uint SUB_ROWS = uint(CHANNELS) / 16u;
const uint SUB_COLS = LINES / SUBS;
const uint THREADS = gl_WorkGroupSize.x;
const uint TAPS = 9u;
// Elements of a row of the patch, and of all of it.
const uint WIDTH = ACROSS + 2u;
const uint PIXELS = (LINES + 2u) * WIDTH;
// Groups of eight channels: of the weights at one depth, of a tap's weights and of the patch.
const uint W_ROW = uint(CHANNELS) / 8u;
const uint W_ALL = uint(DEPTH) * W_ROW;
const uint X_ALL = PIXELS * uint(DEPTH) / 8u;
const uint W_LOADS = (W_ALL + THREADS - 1u) / THREADS;
const uint X_LOADS = (X_ALL + THREADS - 1u) / THREADS;
// Groups from one depth of the weights to the next, and from one element of the patch to the next; the padding keeps
// those of one column in different banks.
const uint W_LINE = W_ROW + 1u;
const uint X_LINE = uint(DEPTH) / 8u + 1u;
const uint W_SIZE = uint(DEPTH) * W_LINE;
const uint X_SIZE = PIXELS * X_LINE;
// Sums leave in blocks of 16 lines of 16 float32 and a padding of 4.
const uint LINE = 5u;

// The weights of a tap and the patch; after the last step, a block of sums for every subgroup. Little of it, so that several
// work-groups share a processor.
shared uvec4 tile[max(W_SIZE + X_SIZE, SUBS * 16u * LINE)];
#define TILE_HALVES 8u
#include "matrix.glsl"

// What is loaded before it fills the tiles: weights of a step and of the two after it, and the patch of the next channels. As it
// was read: what is done with it waits for it, so that is done when the tiles are filled.
uvec4 w_next[3][W_LOADS];
float16_t x_next[X_LOADS][8];
// Where the elements that this invocation loads begin; negative outside the input.
int x_from[X_LOADS];

// Number `i` of the groups that this invocation loads: of the patch (element, group of channels), and of a tap's weights
// (group of channels, depth).
uvec2 x_place(uint i)
{
    uint at = gl_LocalInvocationIndex + i * THREADS;
    return uvec2(at % PIXELS, at / PIXELS);
}

uvec2 w_place(uint i)
{
    uint at = gl_LocalInvocationIndex + i * THREADS;
    return uvec2(at % W_ROW, at / W_ROW);
}

// Loads the weights of `channel` and those after it of the tap whose weights begin at `first`, as number `ahead`. What is not
// there is read as the last that is.
void load_weights(uint ahead, uint channel, uint first)
{
    uint row = (p.oc + 7u) / 8u;
    [[unroll]] for (uint i = 0u; i < W_LOADS; ++i) {
        uvec2 at = w_place(i);
        uint group = min(gl_WorkGroupID.y * W_ROW + at.x, row - 1u);
        w_next[ahead][i] = w[first + min(channel + at.y, p.ic - 1u) * row + group];
    }
}

// Channels of the input that are not there have weights of 0; nothing takes the sums of those of the output.
void put_weights(uint ahead, uint channel)
{
    [[unroll]] for (uint i = 0u; i < W_LOADS; ++i) {
        uvec2 at = w_place(i);
        if (at.y < uint(DEPTH)) {
            tile[at.y * W_LINE + at.x] = channel + at.y < p.ic ? w_next[ahead][i] : uvec4(0u);
        }
    }
}

// Loads the patch of `channel` and those after it. What is not there is read as something that is.
void load_patch(uint channel, int in_plane)
{
    [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
        uint first = channel + 8u * x_place(i).y;
        int from = max(x_from[i], 0);
        [[unroll]] for (uint q = 0u; q < 8u; ++q) {
            x_next[i][q] = x[from + int(min(first + q, p.ic - 1u)) * in_plane];
        }
    }
}

void put_patch(uint channel)
{
    [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
        uvec2 at = x_place(i);
        uvec4 words;
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            uvec2 k = channel + 8u * at.y + uvec2(2u * q, 2u * q + 1u);
            f16vec2 pair = f16vec2(x_next[i][2u * q], x_next[i][2u * q + 1u]);
            words[q] = packFloat2x16(mix(f16vec2(0.0), pair, lessThan(k, uvec2(x_from[i] >= 0 ? p.ic : 0u))));
        }
        if (at.y < uint(DEPTH) / 8u) {
            tile[W_SIZE + at.x * X_LINE + at.y] = words;
        }
    }
}

float sum_at(uint first, uint line, uint n)
{
    return uintBitsToFloat(tile[first + line * LINE + n / 4u][n % 4u]);
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
            float b = bias_of(to);
            float slope = slope_of(to, p.groups * p.oc, p.act_a);
            float v = plus_summand(sum_at(first, q / 16u, q % 16u) + b, at);
            y[at] = float16_t(activate(v, ACTIVATION, slope, p.act_b));
        }
    }
}

// The indices are literals: drivers keep an array that is indexed by variables in memory, not in registers.
#define LEAVE(I, J)                                                                             \
    coopMatStore(sums[I][J], tile, first, LINE, ROW_MAJOR);                                     \
    wait_for_sums(false);                                                                       \
    leave(first, first_channel + 16u * I, first_line + sub_line + J, first_element);            \
    wait_for_sums(false);

void main()
{
    uint group = gl_WorkGroupID.z % p.groups;
    uint image = gl_WorkGroupID.z / p.groups;
    uint patches = (p.ow + ACROSS - 1u) / ACROSS;
    uint first_channel = gl_WorkGroupID.y * uint(CHANNELS);
    uint first_element = gl_WorkGroupID.x % patches * ACROSS;
    uint first_line = gl_WorkGroupID.x / patches * LINES;
    uint sub_line = SUBGROUP * SUB_COLS;

    int in_plane = p.ih * p.iw;
    int x_first = int((image * p.groups + group) * p.ic) * in_plane;
    [[unroll]] for (uint i = 0u; i < X_LOADS; ++i) {
        uvec2 at = x_place(i);
        int v = int(first_line + at.x / WIDTH) - p.ph;
        int u = int(first_element + at.x % WIDTH) - p.pw;
        bool inside = at.y < uint(DEPTH) / 8u && uint(v) < uint(p.ih) && uint(u) < uint(p.iw);
        x_from[i] = inside ? x_first + v * p.iw + u : -1;
    }
    SUMS sums[SUB_ROWS][SUB_COLS];
    CLEAR(sums)

    uint of_tap = p.ic * ((p.oc + 7u) / 8u);
    uint w_first = group * TAPS * of_tap;
    load_weights(0u, 0u, w_first);
    load_patch(0u, in_plane);
    load_weights(1u, 0u, w_first + of_tap);
    put_weights(0u, 0u);
    put_patch(0u);
    barrier();
    for (uint channel = 0u; channel < p.ic; channel += uint(DEPTH)) {
        bool more = channel + uint(DEPTH) < p.ic;
        for (uint kh = 0u; kh < 3u; ++kh) {
            // Every turn loads the weights of the tap after the next one; the indices are literals.
            [[unroll]] for (uint kw = 0u; kw < 3u; ++kw) {
                uint tap = 3u * kh + kw + 2u;
                if (tap < TAPS) {
                    load_weights((kw + 2u) % 3u, channel, w_first + tap * of_tap);
                } else if (more) {
                    load_weights((kw + 2u) % 3u, channel + uint(DEPTH), w_first + (tap - TAPS) * of_tap);
                }
                if (more && kh == 0u && kw == 1u) {
                    load_patch(channel + uint(DEPTH), in_plane);
                }
                [[unroll]] for (uint k = 0u; k < uint(DEPTH); k += 16u) {
                    LEFT left[SUB_ROWS];
                    [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                        coopMatLoad(left[i], tile, k * W_LINE + 2u * i, W_LINE, COLUMN_MAJOR);
                    }
                    [[unroll]] for (uint j = 0u; j < SUB_COLS; ++j) {
                        RIGHT right;
                        uint from = W_SIZE + ((sub_line + j + kh) * WIDTH + kw) * X_LINE + k / 8u;
                        coopMatLoad(right, tile, from, X_LINE, COLUMN_MAJOR);
                        [[unroll]] for (uint i = 0u; i < SUB_ROWS; ++i) {
                            sums[i][j] = coopMatMulAdd(left[i], right, sums[i][j]);
                        }
                    }
                }
                barrier();
                bool last = kh == 2u && kw == 2u;
                put_weights((kw + 1u) % 3u, last ? channel + uint(DEPTH) : channel);
                if (more && last) {
                    put_patch(channel + uint(DEPTH));
                }
                barrier();
            }
        }
    }

    uint first = SUBGROUP * 16u * LINE;
    LEAVE_LEFT(0u)
#if CHANNELS > 16
    LEAVE_LEFT(1u)
#endif
#if CHANNELS > 32
    LEAVE_LEFT(2u)
    LEAVE_LEFT(3u)
#endif
}
