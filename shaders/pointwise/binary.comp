// y = op(a, b) over n elements with broadcasting. OP is ops::pointwise::Binary's code.
// A_KIND and B_KIND say how an operand is read: 0 element i, 1 always element 0, 2 through its strides.
// SWAP computes op(b, a). The x4 variants work on four neighbours: in f32x4 both operands are read so, in
// f32x4s b is one element for the four.
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
#include "math.glsl"
#include "nest.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, OP, 0);
SPEC(2, uint, A_KIND, 0);
SPEC(3, uint, B_KIND, 0);
SPEC(4, int, RANK, 1);
SPEC(5, uint, SWAP, 0);

layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { TB b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    float scale;
    uint sizes[NEST_MAX];
    int a_strides[NEST_MAX];
    int b_strides[NEST_MAX];
} p;

#ifdef FLOAT
// pow as C defines it; GLSL leaves negative bases open.
float power(float v, float e)
{
    if (e == 0.0 || v == 1.0) {
        return 1.0;
    }
    if (is_nan(v) || is_nan(e)) {
        return is_nan(v) ? v : e;
    }
    // Small whole exponents are the usual ones, and must be exact.
    if (e == 1.0) {
        return v;
    }
    if (e == 2.0) {
        return v * v;
    }
    if (e == 3.0) {
        return v * v * v;
    }
    if (e == -1.0) {
        return 1.0 / v;
    }
    if (e == 0.5 && floatBitsToUint(v) >> 31 == 0u) {
        return sqrt(v);
    }
    float m = abs(v);
    float r;
    if (m == 0.0 || is_inf(m) || is_inf(e)) {
        bool grows = (m > 1.0) == (e > 0.0);
        r = m == 1.0 ? 1.0 : (grows ? uintBitsToFloat(0x7f800000u) : 0.0);
    } else {
        r = pow(m, e);
    }
    if (v >= 0.0 && floatBitsToUint(v) >> 31 == 0u) {
        return r;
    }
    bool whole = floor(e) == e;
    bool odd = whole && abs(e) < 16777216.0 && fract(abs(e) * 0.5) != 0.0;
    return odd ? -r : (whole || m == 0.0 || is_inf(m) ? r : uintBitsToFloat(0x7fc00000u));
}

float c_mod(float v, float d)
{
    float r = abs(v) - abs(d) * trunc(abs(v) / abs(d));
    // The quotient is rounded: the remainder may be off by one divisor.
    r = r < 0.0 ? r + abs(d) : (r >= abs(d) ? r - abs(d) : r);
    r = is_inf(d) && !is_inf(v) && !is_nan(v) ? abs(v) : r;
    return floatBitsToUint(v) >> 31 != 0u ? -r : r;
}

C op(C v, C w)
{
    switch (OP) {
    case 0: return v + w;
    case 1: return v - w;
    case 2: return v * w;
    case 3: return v / w;
    case 4: return power(v, w);
    case 5: return c_mod(v, w);
    case 6: {
        float r = c_mod(v, w);
        return r != 0.0 && (r < 0.0) != (w < 0.0) ? r + w : r;
    }
    case 7: return is_nan(v) ? v : (is_nan(w) ? w : min(v, w));
    case 8: return is_nan(v) ? v : (is_nan(w) ? w : max(v, w));
    case 9: return v < 0.0 ? v * w : v;
    default: return (v + w) * p.scale;
    }
}
#elif defined(FLOAT64)
C op(C v, C w)
{
    switch (OP) {
    case 0: return v + w;
    case 1: return v - w;
    case 2: return v * w;
    case 3: return v / w;
    case 7: return isnan(v) ? v : (isnan(w) ? w : min(v, w));
    case 8: return isnan(v) ? v : (isnan(w) ? w : max(v, w));
    case 9: return v < 0.0 ? v * w : v;
    default: return (v + w) * double(p.scale);
    }
}
#else
// Truncates toward zero; 0 by 0, since a device may trap on a division by zero.
C quotient(C v, C w)
{
#ifdef SIGNED
    bool unsafe = w == C(0) || w == C(-1);
    C q = v / (unsafe ? C(1) : w);
    return w == C(0) ? C(0) : (w == C(-1) ? -v : q);
#else
    C q = v / (w == C(0) ? C(1) : w);
    return w == C(0) ? C(0) : q;
#endif
}

C c_mod(C v, C w)
{
    return w == C(0) ? C(0) : v - quotient(v, w) * w;
}

C power(C v, C e)
{
    C r = C(1);
#ifdef SIGNED
    if (e < C(0)) {
        return v == C(1) ? v : (v == C(-1) ? ((e & C(1)) != C(0) ? v : C(1)) : C(0));
    }
#endif
    while (e != C(0)) {
        if ((e & C(1)) != C(0)) {
            r *= v;
        }
        v *= v;
        e >>= 1;
    }
    return r;
}

C op(C v, C w)
{
    switch (OP) {
    case 0: return v + w;
    case 1: return v - w;
    case 2: return v * w;
    case 3: return quotient(v, w);
    case 4: return power(v, w);
    case 5: return c_mod(v, w);
#ifdef SIGNED
    case 6: {
        C r = c_mod(v, w);
        return r != C(0) && (r < C(0)) != (w < C(0)) ? r + w : r;
    }
    case 9: return v < C(0) ? v * w : v;
#else
    case 6: return c_mod(v, w);
    case 9: return v;
#endif
    case 7: return min(v, w);
    case 8: return max(v, w);
    case 11: return v & w;
    case 12: return v | w;
    case 13: return v ^ w;
    // Shifts by less than 0 or by the width or more leave nothing but copies of the sign.
#ifdef SIGNED
    case 14: return w >= C(0) && w < C(SHIFT_WIDTH) ? v << w : C(0);
    case 15: return v >> (w >= C(0) && w < C(SHIFT_WIDTH) ? w : C(SHIFT_WIDTH - 1));
#else
    case 14: return w < C(SHIFT_WIDTH) ? v << w : C(0);
    case 15: return w < C(SHIFT_WIDTH) ? v >> w : C(0);
#endif
    default: return v;
    }
}
#endif

C apply(C v, C w)
{
    return SWAP != 0u ? op(w, v) : op(v, w);
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
