// y = compare(a, b) as bytes 0 or 1, with broadcasting; OP is the number of a BinaryFunction
// (crates/onepool-expr/src/functions.rs).
// Operands are read as in binary.comp.
// variant: f32  T=float C=float
// variant: f16  T=float16_t C=float EXT_STORAGE16
// variant: f64  T=double C=double
// variant: i8   T=int8_t C=int
// variant: i16  T=int16_t C=int EXT_STORAGE16
// variant: i32  T=int C=int
// variant: i64  T=int64_t C=int64_t EXT_INT64
// variant: u8   T=uint8_t C=uint
// variant: u16  T=uint16_t C=uint EXT_STORAGE16
// variant: u32  T=uint C=uint
// variant: u64  T=uint64_t C=uint64_t EXT_INT64
#version 450
#define EXT_STORAGE8
#define COMPARES
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "nest.glsl"
#include "binary.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, OP, 0);
SPEC(2, uint, A_KIND, 0);
SPEC(3, uint, B_KIND, 0);
SPEC(4, int, RANK, 1);

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
    int at_a = A_KIND == 0u ? int(i) : 0;
    int at_b = B_KIND == 0u ? int(i) : 0;
    if (A_KIND == 2u || B_KIND == 2u) {
        int sa = 0;
        int sb = 0;
#define ADVANCE(d, c) sa += c * p.a_strides[d]; sb += c * p.b_strides[d];
        FOR_EACH_COORDINATE(RANK, i, ADVANCE)
        at_a = A_KIND == 2u ? sa : at_a;
        at_b = B_KIND == 2u ? sb : at_b;
    }
    y[i] = uint8_t(compare(C(a[at_a]), C(b[at_b]), OP) ? 1u : 0u);
}
