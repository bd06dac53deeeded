// y = min(max(x, low), high) with bounds read from scalars; USE says which there are (1: low, 2: high).
// variant: f32  T=float C=float FLOAT
// variant: f16  T=float16_t C=float FLOAT EXT_STORAGE16
// variant: f64  T=double C=double
// variant: i8   T=int8_t C=int EXT_STORAGE8
// variant: i16  T=int16_t C=int EXT_STORAGE16
// variant: i32  T=int C=int
// variant: i64  T=int64_t C=int64_t EXT_INT64
// variant: u8   T=uint8_t C=uint EXT_STORAGE8
// variant: u16  T=uint16_t C=uint EXT_STORAGE16
// variant: u32  T=uint C=uint
// variant: u64  T=uint64_t C=uint64_t EXT_INT64
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "math.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, USE, 3);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Low { T low[]; };
layout(set = 0, binding = 2, std430) readonly buffer High { T high[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
} p;

#ifndef FLOAT
C at_least(C v, C bound)
{
    return v < bound ? bound : v;
}

C at_most(C v, C bound)
{
    return v > bound ? bound : v;
}
#endif

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        C v = C(x[i]);
        if ((USE & 1u) != 0u) {
            v = at_least(v, C(low[0]));
        }
        if ((USE & 2u) != 0u) {
            v = at_most(v, C(high[0]));
        }
        y[i] = T(v);
    }
}
