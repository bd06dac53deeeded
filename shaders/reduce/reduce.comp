// Reduces blocks of elements to one each: y[i] = finish(combine over r of map(x[base(i) + r])).
// An invocation does one, or with GROUPED a team of TEAM invocations, of contiguous lines; with WIDE by 16 bytes.
// Parts of halves are kept in float.
// variant: f32 TX=f32 TY=f32 ACC=float FLOAT=1
// variant: f16 TX=f16 TY=f16 ACC=float FLOAT=1 EXT_STORAGE16
// variant: f16_parts TX=f16 TY=f32 ACC=float FLOAT=1 EXT_STORAGE16
// variant: f16_total TX=f32 TY=f16 ACC=float FLOAT=1 EXT_STORAGE16
// variant: i32 TX=i32 TY=i32 ACC=int
// variant: i64 TX=i64 TY=i64 ACC=int64_t EXT_INT64=1
// variant: f32_grouped TX=f32 TY=f32 ACC=float FLOAT=1 GROUPED=1
// variant: f16_grouped TX=f16 TY=f16 ACC=float FLOAT=1 GROUPED=1 EXT_STORAGE16
// variant: f16_parts_grouped TX=f16 TY=f32 ACC=float FLOAT=1 GROUPED=1 EXT_STORAGE16
// variant: f16_total_grouped TX=f32 TY=f16 ACC=float FLOAT=1 GROUPED=1 EXT_STORAGE16
// variant: i32_grouped TX=i32 TY=i32 ACC=int GROUPED=1
// variant: i64_grouped TX=i64 TY=i64 ACC=int64_t GROUPED=1 EXT_INT64=1
// variant: f32_wide TX=f32 TY=f32 ACC=float FLOAT=1 GROUPED=1 WIDE=1 VEC=vec4 ACC4=vec4
// variant: f16_wide TX=f16 TY=f16 ACC=float FLOAT=1 GROUPED=1 WIDE=1 VEC=uvec4 ACC4=vec4 HALVES=1 EXT_STORAGE16
// variant: f16_parts_wide TX=f16 TY=f32 ACC=float FLOAT=1 GROUPED=1 WIDE=1 VEC=uvec4 ACC4=vec4 HALVES=1
// variant: f16_total_wide TX=f32 TY=f16 ACC=float FLOAT=1 GROUPED=1 WIDE=1 VEC=vec4 ACC4=vec4 EXT_STORAGE16
// variant: i32_wide TX=i32 TY=i32 ACC=int GROUPED=1 WIDE=1 VEC=ivec4 ACC4=ivec4
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

// What is done to each element.
// enum: Map
#define MAP_NONE 0u    // nothing
#define MAP_ABS 1u     // |x|
#define MAP_SQUARE 2u  // x * x

// How elements become one.
// enum: Combine
#define COMBINE_SUM 0u          // their sum
#define COMBINE_MAX 1u          // the largest
#define COMBINE_MIN 2u          // the smallest
#define COMBINE_PRODUCT 3u      // their product
#define COMBINE_LOG_SUM_EXP 4u  // the logarithm of the sum of their exponentials

// What is done to the result y.
// enum: Finish
#define FINISH_NONE 0u  // nothing
#define FINISH_MEAN 1u  // y / count
#define FINISH_ROOT 2u  // sqrt(y)
#define FINISH_LOG 3u   // log(y)

#ifdef GROUPED
const uint GROUP = 256u;       // rust: invocations of a work-group, the most of a team
layout(local_size_x = 256) in;
SPEC(6, uint, TEAM, 64u);      // a power of two
#else
LOCAL_SIZE(0, 64);
#endif
#define AT_ONCE 16u  // elements that an invocation loads at once
#define MAX_RANK 5  // rust: dimensions kept, and dimensions reduced
SPEC(1, uint, KEPT, 4u);      // dimensions kept
SPEC(2, uint, REDUCED, 4u);   // dimensions reduced
SPEC(3, uint, MAP, 0u);
SPEC(4, uint, COMBINE, 0u);
SPEC(5, uint, FINISH, 0u);

#ifdef WIDE
layout(set = 0, binding = 0, std430) readonly buffer X { VEC x[]; };
#else
layout(set = 0, binding = 0, std430) readonly buffer X { TX x[]; };
#endif
layout(set = 0, binding = 1, std430) writeonly buffer Y { TY y[]; };

layout(push_constant) uniform Params
{
    uint kept[MAX_RANK];
    int kept_strides[MAX_RANK];
    uint reduced[MAX_RANK];
    int reduced_strides[MAX_RANK];
    uint n;
    uint inner;     // elements along the innermost reduced dimension
    uint outer;     // all the other reduced elements
    uint count;     // divisor of a mean
} p;

int base_of(uint i)
{
    int at = 0;
    for (uint d = KEPT; d-- > 0u;) {
        uint next = i / p.kept[d];
        at += int(i - next * p.kept[d]) * p.kept_strides[d];
        i = next;
    }
    return at;
}

int row_of(uint r)
{
    int at = 0;
    for (uint d = REDUCED - 1u; d-- > 0u;) {
        uint next = r / p.reduced[d];
        at += int(r - next * p.reduced[d]) * p.reduced_strides[d];
        r = next;
    }
    return at;
}

ACC mapped(ACC v)
{
    if (MAP == MAP_ABS) {
        return v < ACC(0) ? -v : v;
    }
    return MAP == MAP_SQUARE ? v * v : v;
}

ACC combined(uint how, ACC a, ACC v)
{
    if (how == COMBINE_MAX) {
#ifdef FLOAT
        // A NaN stays.
        return (v > a || isnan(v)) ? v : a;
#else
        return v > a ? v : a;
#endif
    }
    if (how == COMBINE_MIN) {
#ifdef FLOAT
        return (v < a || isnan(v)) ? v : a;
#else
        return v < a ? v : a;
#endif
    }
    return how == COMBINE_PRODUCT ? a * v : a + v;
}

ACC finished(ACC v)
{
    if (FINISH == FINISH_MEAN) {
        return v / ACC(p.count);
    }
#ifdef FLOAT
    if (FINISH == FINISH_ROOT) {
        return sqrt(v);
    }
    if (FINISH == FINISH_LOG) {
        return log(v);
    }
#endif
    return v;
}

#ifdef GROUPED
shared ACC parts[GROUP];

// The combination over the team, for each of its invocations.
ACC over_team(uint how, ACC own)
{
    uint t = gl_LocalInvocationIndex;
    uint lane = t % TEAM;
    parts[t] = own;
    barrier();
    for (uint step = TEAM / 2u; step > 0u; step /= 2u) {
        if (lane < step) {
            parts[t] = combined(how, parts[t], parts[t + step]);
        }
        barrier();
    }
    ACC all = parts[t - lane];
    // The parts are reused.
    barrier();
    return all;
}

// What an invocation fetches at once: elements in `fetched`, which are FOURS values of type ACC4.
#if defined(HALVES)
const uint WIDTH = 8u;
const uint FOURS = 2u;

void fetch(int at, out ACC4 fetched[FOURS])
{
    uvec4 bits = x[at / 8];
    fetched[0] = vec4(unpackHalf2x16(bits.x), unpackHalf2x16(bits.y));
    fetched[1] = vec4(unpackHalf2x16(bits.z), unpackHalf2x16(bits.w));
}
#elif defined(WIDE)
const uint WIDTH = 4u;
const uint FOURS = 1u;

void fetch(int at, out ACC4 fetched[FOURS])
{
    fetched[0] = ACC4(x[at / 4]);
}
#else
const uint WIDTH = 1u;
const uint FOURS = 1u;
#define ACC4 ACC

void fetch(int at, out ACC4 fetched[FOURS])
{
    fetched[0] = ACC(x[at]);
}
#endif

ACC first_of(int at)
{
    ACC4 fetched[FOURS];
    fetch(at, fetched);
#ifdef WIDE
    return fetched[0].x;
#else
    return fetched[0];
#endif
}

ACC joined(uint how, ACC4 all)
{
#ifdef WIDE
    return combined(how, combined(how, all.x, all.y), combined(how, all.z, all.w));
#else
    return all;
#endif
}

void join(uint how, inout ACC4 all, ACC4 v)
{
#ifdef WIDE
    for (uint c = 0u; c < 4u; ++c) {
        all[c] = combined(how, all[c], mapped(v[c]));
    }
#else
    all = combined(how, all, mapped(v));
#endif
}

// This invocation's share of the block that begins at `base`, combined.
ACC share(uint how, int base, ACC neutral)
{
    ACC4 all = ACC4(neutral);
    uint units = p.inner / WIDTH;
    for (uint o = 0u; o < p.outer; ++o) {
        int row = base + row_of(o);
        for (uint k = gl_LocalInvocationIndex % TEAM; k < units; k += TEAM) {
            ACC4 fetched[FOURS];
            fetch(row + int(k * WIDTH), fetched);
            for (uint c = 0u; c < FOURS; ++c) {
                join(how, all, fetched[c]);
            }
        }
    }
    return joined(how, all);
}
#endif

void main()
{
    // Maxima and minima begin with an element, sums and products with the neutral one.
    bool picks = COMBINE == COMBINE_MAX || COMBINE == COMBINE_MIN || COMBINE == COMBINE_LOG_SUM_EXP;
    ACC neutral = ACC(COMBINE == COMBINE_PRODUCT ? 1 : 0);
#ifdef GROUPED
    uint result = linear_group() * (GROUP / TEAM) + gl_LocalInvocationIndex / TEAM;
    // Teams without a result do the last one too, because all wait at the barriers.
    uint i = min(result, p.n - 1u);
    bool writes = result < p.n && gl_LocalInvocationIndex % TEAM == 0u;
    int base = base_of(i);
    ACC begin = picks ? mapped(first_of(base)) : neutral;
#ifdef FLOAT
    if (COMBINE == COMBINE_LOG_SUM_EXP) {
        float top = over_team(COMBINE_MAX, share(COMBINE_MAX, base, begin));
        top = isinf(top) ? 0.0 : top;
        float sum = 0.0;
        for (uint o = 0u; o < p.outer; ++o) {
            int row = base + row_of(o);
            for (uint k = gl_LocalInvocationIndex % TEAM; k < p.inner / WIDTH; k += TEAM) {
                ACC4 fetched[FOURS];
                fetch(row + int(k * WIDTH), fetched);
                for (uint c = 0u; c < FOURS; ++c) {
                    sum += joined(COMBINE_SUM, exp(fetched[c] - top));
                }
            }
        }
        sum = over_team(COMBINE_SUM, sum);
        if (writes) {
            y[i] = TY(log(sum) + top);
        }
        return;
    }
#endif
    ACC all = over_team(COMBINE, share(COMBINE, base, begin));
    if (writes) {
        y[i] = TY(finished(all));
    }
#else
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int base = base_of(i);
    int step = p.reduced_strides[REDUCED - 1u];
    ACC acc = picks ? mapped(ACC(x[base])) : neutral;
#ifdef FLOAT
    if (COMBINE == COMBINE_LOG_SUM_EXP) {
        for (uint o = 0u; o < p.outer; ++o) {
            int row = base + row_of(o);
            for (uint k = 0u; k < p.inner; ++k) {
                acc = max(acc, ACC(x[row + int(k) * step]));
            }
        }
        float top = isinf(acc) ? 0.0 : acc;
        float sum = 0.0;
        for (uint o = 0u; o < p.outer; ++o) {
            int row = base + row_of(o);
            for (uint k = 0u; k < p.inner; ++k) {
                sum += exp(ACC(x[row + int(k) * step]) - top);
            }
        }
        y[i] = TY(log(sum) + top);
        return;
    }
#endif
    for (uint o = 0u; o < p.outer; ++o) {
        int row = base + row_of(o);
        ACC part = picks ? mapped(ACC(x[row])) : neutral;
        uint k = 0u;
        // These loads wait together.
        for (; k + AT_ONCE <= p.inner; k += AT_ONCE) {
            ACC loaded[AT_ONCE];
            [[unroll]] for (uint j = 0u; j < AT_ONCE; ++j) {
                loaded[j] = ACC(x[row + int(k + j) * step]);
            }
            [[unroll]] for (uint j = 0u; j < AT_ONCE; ++j) {
                part = combined(COMBINE, part, mapped(loaded[j]));
            }
        }
        for (; k < p.inner; ++k) {
            part = combined(COMBINE, part, mapped(ACC(x[row + int(k) * step])));
        }
        acc = combined(COMBINE, acc, part);
    }
    y[i] = TY(finished(acc));
#endif
}
