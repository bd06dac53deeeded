// y[kept] = sum over the other axes of a * b (or of a): an invocation for each element, or a work-group.
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
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, KEPT, 5u);      // axes kept
SPEC(2, uint, SUMMED, 4u);    // axes summed over
SPEC(3, uint, BINARY, 1u);    // whether there are two operands

layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { T b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

// Sizes and strides are filled up in front.
layout(push_constant) uniform Params
{
    uint kept[5];
    int kept_a[5];
    int kept_b[5];
    uint summed[4];
    int summed_a[4];
    int summed_b[4];
    uint n;
    uint sums;
} p;

ACC term(ivec2 from, uint k)
{
    for (uint d = 3u; d > 4u - SUMMED; --d) {
        uint next = k / p.summed[d];
        int c = int(k - next * p.summed[d]);
        from += c * ivec2(p.summed_a[d], p.summed_b[d]);
        k = next;
    }
    from += int(k) * ivec2(p.summed_a[4u - SUMMED], p.summed_b[4u - SUMMED]);
    ACC v = ACC(a[from.x]);
    return BINARY != 0u ? v * ACC(b[from.y]) : v;
}

#ifdef GROUPED
shared ACC part[64];
#endif

void main()
{
#ifdef GROUPED
    uint i = linear_group();
#else
    uint i = linear_id();
#endif
    // With a work-group for each element the whole group leaves, so no barrier waits for it.
    if (i >= p.n) {
        return;
    }
    ivec2 from = ivec2(0);
    uint left = i;
    for (uint d = 4u; d > 5u - KEPT; --d) {
        uint next = left / p.kept[d];
        from += int(left - next * p.kept[d]) * ivec2(p.kept_a[d], p.kept_b[d]);
        left = next;
    }
    from += int(left) * ivec2(p.kept_a[5u - KEPT], p.kept_b[5u - KEPT]);
    ACC acc = ACC(0);
#ifdef GROUPED
    uint lane = gl_LocalInvocationID.x;
    for (uint k = lane; k < p.sums; k += 64u) {
        acc += term(from, k);
    }
    part[lane] = acc;
    barrier();
    for (uint half_ = 32u; half_ > 0u; half_ /= 2u) {
        if (lane < half_) {
            part[lane] += part[lane + half_];
        }
        barrier();
    }
    if (lane == 0u) {
        y[i] = T(part[0]);
    }
#else
    for (uint k = 0u; k < p.sums; ++k) {
        acc += term(from, k);
    }
    y[i] = T(acc);
#endif
}
