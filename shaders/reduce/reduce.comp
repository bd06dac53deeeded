// Reduces blocks of elements to one each: y[i] = finish(combine over r of map(x[base(i) + r])).
// Parts of halves are kept in float.
// variant: f32       TX=f32      TY=f32      ACC=float    FLOAT=1
// variant: f16       TX=f16  TY=f16  ACC=float    FLOAT=1  EXT_STORAGE16
// variant: f16_parts TX=f16  TY=f32      ACC=float    FLOAT=1  EXT_STORAGE16
// variant: f16_total TX=f32      TY=f16  ACC=float    FLOAT=1  EXT_STORAGE16
// variant: i32       TX=i32        TY=i32        ACC=int
// variant: i64       TX=i64    TY=i64    ACC=int64_t  EXT_INT64=1
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

LOCAL_SIZE(0, 64);
#define MAX_RANK 5  // rust: dimensions kept, and dimensions reduced
SPEC(1, uint, KEPT, 4u);      // dimensions kept
SPEC(2, uint, REDUCED, 4u);   // dimensions reduced
SPEC(3, uint, MAP, 0u);
SPEC(4, uint, COMBINE, 0u);
SPEC(5, uint, FINISH, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { TX x[]; };
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

ACC combined(ACC a, ACC v)
{
    if (COMBINE == COMBINE_MAX) {
#ifdef FLOAT
        // A NaN stays.
        return (v > a || isnan(v)) ? v : a;
#else
        return v > a ? v : a;
#endif
    }
    if (COMBINE == COMBINE_MIN) {
#ifdef FLOAT
        return (v < a || isnan(v)) ? v : a;
#else
        return v < a ? v : a;
#endif
    }
    return COMBINE == COMBINE_PRODUCT ? a * v : a + v;
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

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int base = base_of(i);
    int step = p.reduced_strides[REDUCED - 1u];
    // Maxima and minima begin with an element, sums and products with the neutral one.
    bool picks = COMBINE == COMBINE_MAX || COMBINE == COMBINE_MIN || COMBINE == COMBINE_LOG_SUM_EXP;
    ACC acc = picks ? mapped(ACC(x[base])) : ACC(COMBINE == COMBINE_PRODUCT ? 1 : 0);
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
        ACC part = picks ? mapped(ACC(x[row])) : ACC(COMBINE == COMBINE_PRODUCT ? 1 : 0);
        for (uint k = 0u; k < p.inner; ++k) {
            part = combined(part, mapped(ACC(x[row + int(k) * step])));
        }
        acc = combined(acc, part);
    }
    y[i] = TY(finished(acc));
}
