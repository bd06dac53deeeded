// y = compare(a, b) as bytes 0 or 1, with broadcasting; OP is the number of a BinaryFunction
// (crates/onepool-expr/src/functions.rs).
// Operands are read as broadcast.glsl says.
// variant: f32  T=f32 C=float
// variant: f16  T=f16 C=float EXT_STORAGE16
// variant: f64  T=f64 C=double
// variant: i8   T=i8 C=int
// variant: i16  T=i16 C=int EXT_STORAGE16
// variant: i32  T=i32 C=int
// variant: i64  T=i64 C=int64_t EXT_INT64
// variant: u8   T=u8 C=uint
// variant: u16  T=u16 C=uint EXT_STORAGE16
// variant: u32  T=u32 C=uint
// variant: u64  T=u64 C=uint64_t EXT_INT64
#version 450
#define EXT_STORAGE8
#define COMPARES
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "broadcast.glsl"
#include "binary.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, OP, 0);

layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { T b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uint8_t y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint sizes[NEST_MAX];
    int a_strides[NEST_MAX];
    int b_strides[NEST_MAX];
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    PLACES(i)
    y[i] = uint8_t(compare(C(a[at_a]), C(b[at_b]), OP) ? 1u : 0u);
}
