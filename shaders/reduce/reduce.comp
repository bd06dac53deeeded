// Reduces blocks of elements to one each: y[i] = finish(combine over r of map(x[base(i) + r])).
// An invocation does one, or with GROUPED a work-group, of contiguous lines; with WIDE four elements at a time.
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
// variant: f16_wide TX=f16 TY=f16 ACC=float FLOAT=1 GROUPED=1 WIDE=1 VEC=f16vec4 ACC4=vec4 EXT_STORAGE16
// variant: f16_parts_wide TX=f16 TY=f32 ACC=float FLOAT=1 GROUPED=1 WIDE=1 VEC=f16vec4 ACC4=vec4 EXT_STORAGE16
// variant: f16_total_wide TX=f32 TY=f16 ACC=float FLOAT=1 GROUPED=1 WIDE=1 VEC=vec4 ACC4=vec4 EXT_STORAGE16
// variant: i32_wide TX=i32 TY=i32 ACC=int GROUPED=1 WIDE=1 VEC=ivec4 ACC4=ivec4
#version 450
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
const uint LANES = 64u;
layout(local_size_x = 64) in;
#else
LOCAL_SIZE(0, 64);
#endif
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
shared ACC parts[LANES];

// The combination over the work-group, for each of its invocations.
ACC over_group(uint how, ACC own)
{
    uint t = gl_LocalInvocationIndex;
    parts[t] = own;
    barrier();
    for (uint step = LANES / 2u; step > 0u; step /= 2u) {
        if (t < step) {
            parts[t] = combined(how, parts[t], parts[t + step]);
        }
        barrier();
    }
    ACC all = parts[0];
    // The parts are reused.
    barrier();
    return all;
}

#ifdef WIDE
const uint WIDTH = 4u;

ACC4 fetched(int at)
{
    return ACC4(x[at / 4]);
}

ACC first_of(int at)
{
    return ACC(x[at / 4].x);
}
#else
const uint WIDTH = 1u;
#define ACC4 ACC

ACC fetched(int at)
{
    return ACC(x[at]);
}

ACC first_of(int at)
{
    return ACC(x[at]);
}
#endif

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
    for (uint c = 0u; c < WIDTH; ++c) {
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
        for (uint k = gl_LocalInvocationIndex; k < units; k += LANES) {
            join(how, all, fetched(row + int(k * WIDTH)));
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
    uint i = linear_group();
    // The whole group leaves, so no barrier waits for it.
    if (i >= p.n) {
        return;
    }
    int base = base_of(i);
    ACC begin = picks ? mapped(first_of(base)) : neutral;
#ifdef FLOAT
    if (COMBINE == COMBINE_LOG_SUM_EXP) {
        float top = over_group(COMBINE_MAX, share(COMBINE_MAX, base, begin));
        top = isinf(top) ? 0.0 : top;
        float sum = 0.0;
        for (uint o = 0u; o < p.outer; ++o) {
            int row = base + row_of(o);
            for (uint k = gl_LocalInvocationIndex; k < p.inner / WIDTH; k += LANES) {
                sum += joined(COMBINE_SUM, exp(fetched(row + int(k * WIDTH)) - top));
            }
        }
        sum = over_group(COMBINE_SUM, sum);
        if (gl_LocalInvocationIndex == 0u) {
            y[i] = TY(log(sum) + top);
        }
        return;
    }
#endif
    ACC all = over_group(COMBINE, share(COMBINE, base, begin));
    if (gl_LocalInvocationIndex == 0u) {
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
        for (uint k = 0u; k < p.inner; ++k) {
            part = combined(COMBINE, part, mapped(ACC(x[row + int(k) * step])));
        }
        acc = combined(COMBINE, acc, part);
    }
    y[i] = TY(finished(acc));
#endif
}
