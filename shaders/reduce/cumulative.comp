// Sums or products of the elements of each line up to each one: an invocation for each line, or with GROUPED a
// work-group; with WIDE four elements at a time of contiguous lines whose length is a multiple of four.
// variant: f32          T=f32      ACC=float
// variant: f16          T=f16  ACC=float    EXT_FLOAT16=1
// variant: f64          T=f64     ACC=double   EXT_FLOAT64=1
// variant: i32          T=i32        ACC=int
// variant: i64          T=i64    ACC=int64_t  EXT_INT64=1
// variant: f32_grouped  T=f32      ACC=float    GROUPED=1
// variant: f16_grouped  T=f16  ACC=float    EXT_FLOAT16=1  GROUPED=1
// variant: f64_grouped  T=f64     ACC=double   EXT_FLOAT64=1  GROUPED=1
// variant: i32_grouped  T=i32        ACC=int      GROUPED=1
// variant: i64_grouped  T=i64    ACC=int64_t  EXT_INT64=1    GROUPED=1
// variant: f32_wide     T=f32  ACC=float  GROUPED=1  WIDE=1  VEC=vec4  ACC4=vec4
// variant: f16_wide     T=f16  ACC=float  EXT_FLOAT16=1  GROUPED=1  WIDE=1  VEC=f16vec4  ACC4=vec4
// variant: i32_wide     T=i32  ACC=int    GROUPED=1  WIDE=1  VEC=ivec4  ACC4=ivec4
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

#ifdef WIDE
#define LANES 256u
layout(local_size_x = 256) in;
#else
#define LANES 64u
LOCAL_SIZE(0, 64);
#define VEC T
#endif
SPEC(1, uint, PRODUCT, 0u);
SPEC(2, uint, EXCLUSIVE, 0u);
SPEC(3, uint, REVERSE, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { VEC x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { VEC y[]; };

layout(push_constant) uniform Params
{
    uint lines;
    uint len;
    uint inner;
} p;

ACC combined(ACC a, ACC b)
{
    return PRODUCT != 0u ? a * b : a + b;
}

// Where element k of a line that begins at `base` lies.
uint at(uint base, uint k)
{
    return base + (REVERSE != 0u ? p.len - 1u - k : k) * p.inner;
}

#ifdef GROUPED
// Elements that an invocation takes of each tile.
#define RUN 4u
#define TILE (LANES * RUN)
shared ACC part[LANES];
#endif

void main()
{
    ACC neutral = ACC(PRODUCT != 0u ? 1 : 0);
#ifdef GROUPED
    uint line = linear_group();
    // The whole group leaves, so no barrier waits for it.
    if (line >= p.lines) {
        return;
    }
    uint base = line / p.inner * p.len * p.inner + line % p.inner;
    uint lane = gl_LocalInvocationID.x;
    ACC before = neutral;
    for (uint first = 0u; first < p.len; first += TILE) {
        uint from = first + lane * RUN;
        ACC own[RUN];
        ACC sum = neutral;
#ifdef WIDE
        // A line that is walked from its end has the vectors in reverse order, and each of them too.
        bool inside = from < p.len;
        uint four = (base + (REVERSE != 0u ? p.len - RUN - from : from)) / RUN;
        ACC4 fetched = inside ? ACC4(x[four]) : ACC4(neutral);
        fetched = REVERSE != 0u ? fetched.wzyx : fetched;
        own[0] = fetched.x;
        own[1] = fetched.y;
        own[2] = fetched.z;
        own[3] = fetched.w;
#endif
        for (uint k = 0u; k < RUN; ++k) {
#ifndef WIDE
            own[k] = from + k < p.len ? ACC(x[at(base, from + k)]) : neutral;
#endif
            sum = combined(sum, own[k]);
        }
        part[lane] = sum;
        barrier();
        for (uint step = 1u; step < LANES; step *= 2u) {
            ACC other = lane >= step ? part[lane - step] : neutral;
            barrier();
            part[lane] = combined(other, part[lane]);
            barrier();
        }
        ACC acc = lane > 0u ? combined(before, part[lane - 1u]) : before;
        before = combined(before, part[LANES - 1u]);
        // The parts are written again.
        barrier();
        for (uint k = 0u; k < RUN; ++k) {
            ACC next = combined(acc, own[k]);
#ifdef WIDE
            own[k] = EXCLUSIVE != 0u ? acc : next;
#else
            if (from + k < p.len) {
                y[at(base, from + k)] = T(EXCLUSIVE != 0u ? acc : next);
            }
#endif
            acc = next;
        }
#ifdef WIDE
        if (inside) {
            ACC4 scanned = ACC4(own[0], own[1], own[2], own[3]);
            y[four] = VEC(REVERSE != 0u ? scanned.wzyx : scanned);
        }
#endif
    }
#else
    uint line = linear_id();
    if (line >= p.lines) {
        return;
    }
    uint base = line / p.inner * p.len * p.inner + line % p.inner;
    ACC acc = neutral;
    for (uint k = 0u; k < p.len; ++k) {
        uint i = at(base, k);
        ACC next = combined(acc, ACC(x[i]));
        y[i] = T(EXCLUSIVE != 0u ? acc : next);
        acc = next;
    }
#endif
}
