// y = binary(a, b) over n elements with broadcasting; OP is the number of a BinaryFunction
// (crates/onepool-expr/src/functions.rs).
// Operands are read as broadcast.glsl says. SWAP computes binary(b, a); MEAN divides the result by a count. With FOURS an invocation
// computes four contiguous elements, of four of each operand, or with SPLAT of one of b.
// variant: f32    T=f32 C=float FLOAT
// variant: f32x4  T=f32 C=float FLOAT FOURS
// variant: f32x4s T=f32 C=float FLOAT FOURS SPLAT
// variant: f16    T=f16 C=float FLOAT EXT_STORAGE16
// variant: f64    T=f64 C=double FLOAT64
// variant: i8     T=i8 C=int SIGNED EXT_STORAGE8
// variant: i16    T=i16 C=int SIGNED EXT_STORAGE16
// variant: i32    T=i32 C=int SIGNED
// variant: i64    T=i64 C=int64_t SIGNED EXT_INT64
// variant: u8     T=u8 C=uint EXT_STORAGE8
// variant: u16    T=u16 C=uint EXT_STORAGE16
// variant: u32    T=u32 C=uint
// variant: u64    T=u64 C=uint64_t EXT_INT64
#version 450
#if defined(EXT_STORAGE8)
#define SHIFT_WIDTH 8
#elif defined(EXT_STORAGE16)
#define SHIFT_WIDTH 16
#elif defined(EXT_INT64)
#define SHIFT_WIDTH 64
#else
#define SHIFT_WIDTH 32
#endif
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "binary.glsl"
#include "broadcast.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, OP, 0);
SPEC(5, uint, SWAP, 0);
SPEC(6, uint, MEAN, 0);

#ifdef FOURS
#define EACH vec4
#else
#define EACH T
#endif
#ifdef SPLAT
#define EACH_B T
#else
#define EACH_B EACH
#endif
layout(set = 0, binding = 0, std430) readonly buffer A { EACH a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { EACH_B b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { EACH y[]; };

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
#ifdef FOURS
    uint element = i * 4u;
#else
    uint element = i;
#endif
    PLACES(element)
#ifdef FOURS
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
