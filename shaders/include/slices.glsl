// Sums of products over tiles in workgroup memory, of TILE x TILE elements and DEPTH along k: 256 invocations, each of
// 4 x 4 elements. With SMALL four parts of the work-group each sum a slice of the depth, and their sums are added:
// a product of few elements then keeps as many invocations busy.
#ifndef ONEPOOL_SLICES_GLSL
#define ONEPOOL_SLICES_GLSL

#ifdef SMALL
const uint TILE = 32u;   // rust SMALL_TILE: rows and columns of a small tile
const uint DEPTH = 32u;  // rust SMALL_DEPTH: depth that a step of a small tile sums
#else
const uint TILE = 64u;   // rust: rows and columns of a tile
const uint DEPTH = 16u;  // rust: depth that a step sums
#endif
const uint THREADS = 256u;
const uint SIDE = TILE / 4u;
const uint SLICES = THREADS / (SIDE * SIDE);
// Elements of a tile that each invocation loads.
const uint LOADS = TILE * DEPTH / THREADS;

// Padded, so that elements of neighbouring depths are in different banks.
shared vec4 a_tile[DEPTH][SIDE + 1u];
shared vec4 b_tile[DEPTH][SIDE + 1u];
#ifdef SMALL
shared vec4 slices[4][SLICES / 2u * SIDE * SIDE];
#endif

// Element number `i` of a tile, as (position across, depth): contiguous along k, or across.
uvec2 place(bool along_k, uint i)
{
    return along_k ? uvec2(i / DEPTH, i % DEPTH) : uvec2(i % TILE, i / TILE);
}

void put_a(uvec2 at, float v)
{
    a_tile[at.y][at.x / 4u][at.x % 4u] = v;
}

void put_b(uvec2 at, float v)
{
    b_tile[at.y][at.x / 4u][at.x % 4u] = v;
}

// The first row and column of this invocation's elements in the tile.
uvec2 corner()
{
    uint t = gl_LocalInvocationIndex % (SIDE * SIDE);
    return 4u * uvec2(t / SIDE, t % SIDE);
}

// Adds the products of one step, this invocation's slice of it.
void sum_step(inout vec4 sums[4])
{
    uvec2 at = corner() / 4u;
    uint first = gl_LocalInvocationIndex / (SIDE * SIDE) * (DEPTH / SLICES);
    [[unroll]] for (uint k = 0u; k < DEPTH / SLICES; ++k) {
        vec4 left = a_tile[first + k][at.x];
        vec4 right = b_tile[first + k][at.y];
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            sums[i] = fma(vec4(left[i]), right, sums[i]);
        }
    }
}

// Adds the slices; returns whether this invocation has the sums.
bool sum_slices(inout vec4 sums[4])
{
#ifdef SMALL
    uint slice = gl_LocalInvocationIndex / (SIDE * SIDE);
    uint t = gl_LocalInvocationIndex % (SIDE * SIDE);
    [[unroll]] for (uint half_of = SLICES / 2u; half_of > 0u; half_of /= 2u) {
        if (slice >= half_of && slice < 2u * half_of) {
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                slices[i][(slice - half_of) * SIDE * SIDE + t] = sums[i];
            }
        }
        barrier();
        if (slice < half_of) {
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                sums[i] += slices[i][slice * SIDE * SIDE + t];
            }
        }
        barrier();
    }
    return slice == 0u;
#else
    return true;
#endif
}

#endif
