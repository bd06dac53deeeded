// y = binary(a, b) over n elements with broadcasting; OP is the number of a BinaryFunction
// (crates/onepool-expr/src/functions.rs).
// A_KIND and B_KIND select how an operand is read: 0 element i, 1 always element 0, 2 through its strides.
// SWAP computes binary(b, a); MEAN divides the result by a count. The x4 variants compute four contiguous elements: f32x4 reads
// four of each operand, f32x4s one of b.
// variant: f32    T=float TB=float C=float FLOAT
// variant: f32x4  T=vec4 TB=vec4 C=float FLOAT LANES4
// variant: f32x4s T=vec4 TB=float C=float FLOAT LANES4 SPLAT
// variant: f16    T=float16_t TB=float16_t C=float FLOAT EXT_STORAGE16
// variant: f64    T=double TB=double C=double FLOAT64
// variant: i8     T=int8_t TB=int8_t C=int SIGNED EXT_STORAGE8 SHIFT_WIDTH=8
// variant: i16    T=int16_t TB=int16_t C=int SIGNED EXT_STORAGE16 SHIFT_WIDTH=16
// variant: i32    T=int TB=int C=int SIGNED SHIFT_WIDTH=32
// variant: i64    T=int64_t TB=int64_t C=int64_t SIGNED EXT_INT64 SHIFT_WIDTH=64
// variant: u8     T=uint8_t TB=uint8_t C=uint EXT_STORAGE8 SHIFT_WIDTH=8
// variant: u16    T=uint16_t TB=uint16_t C=uint EXT_STORAGE16 SHIFT_WIDTH=16
// variant: u32    T=uint TB=uint C=uint SHIFT_WIDTH=32
// variant: u64    T=uint64_t TB=uint64_t C=uint64_t EXT_INT64 SHIFT_WIDTH=64
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "binary.glsl"
#include "nest.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, OP, 0);
SPEC(2, uint, A_KIND, 0);
SPEC(3, uint, B_KIND, 0);
SPEC(4, int, RANK, 1);
SPEC(5, uint, SWAP, 0);
SPEC(6, uint, MEAN, 0);

layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { TB b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    float count;
    uint sizes[NEST_MAX];
    int a_strides[NEST_MAX];
    int b_strides[NEST_MAX];
} p;

C apply(C v, C w)
{
    C r = SWAP != 0u ? binary(w, v, OP) : binary(v, w, OP);
#if defined(FLOAT) || defined(FLOAT64)
    return MEAN != 0u ? r / C(p.count) : r;
#else
    return r;
#endif
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
#ifdef LANES4
    uint element = i * 4u;
#else
    uint element = i;
#endif
    int at_a = A_KIND == 0u ? int(element) : 0;
    int at_b = B_KIND == 0u ? int(element) : 0;
    if (A_KIND == 2u || B_KIND == 2u) {
        int sa = 0;
        int sb = 0;
#define ADVANCE(d, c) sa += c * p.a_strides[d]; sb += c * p.b_strides[d];
        FOR_EACH_COORDINATE(RANK, element, ADVANCE)
        at_a = A_KIND == 2u ? sa : at_a;
        at_b = B_KIND == 2u ? sb : at_b;
    }
#ifdef LANES4
    vec4 v = a[at_a / 4];
#ifdef SPLAT
    vec4 w = vec4(b[at_b]);
#else
    vec4 w = b[at_b / 4];
#endif
    y[i] = vec4(apply(v.x, w.x), apply(v.y, w.y), apply(v.z, w.z), apply(v.w, w.w));
#else
    y[i] = T(apply(C(a[at_a]), C(b[at_b])));
#endif
}
