// y = op(x) over n elements. OP is ops::pointwise::Unary's code; a and b are its parameters.
// variant: f32    T=float C=float FLOAT
// variant: f32x4  T=vec4 C=float FLOAT LANES4
// variant: f16    T=float16_t C=float FLOAT EXT_STORAGE16
// variant: i8     T=int8_t C=int SIGNED EXT_STORAGE8
// variant: i16    T=int16_t C=int SIGNED EXT_STORAGE16
// variant: i32    T=int C=int SIGNED
// variant: i64    T=int64_t C=int64_t SIGNED EXT_INT64
// variant: u8     T=uint8_t C=uint EXT_STORAGE8
// variant: u16    T=uint16_t C=uint EXT_STORAGE16
// variant: u32    T=uint C=uint
// variant: u64    T=uint64_t C=uint64_t EXT_INT64
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, OP, 0);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    float a;
    float b;
} p;

#ifdef FLOAT
C op(C v)
{
    float a = p.a;
    float b = p.b;
    switch (OP) {
    case 0: return is_nan(v) ? v : abs(v);
    case 1: return -v;
    case 2: return v > 0.0 ? 1.0 : (v < 0.0 ? -1.0 : v);
    case 3: return at_least(v, 0.0);
    case 4: return activate(v, ACT_LEAKY_RELU, a, b);
    case 5: return at_most(at_least(v, a), b);
    case 6: return activate(v, ACT_SIGMOID, a, b);
    case 7: return activate(v, ACT_HARD_SIGMOID, a, b);
    case 8: return activate(v, ACT_HARD_SWISH, a, b);
    case 9: return tanh_exact(v);
    case 10: return exp(v);
    case 11: return ln(v);
    case 12: return sqrt(v);
    case 13: return 1.0 / v;
    case 14: return erf(v);
    case 15: return floor(v);
    case 16: return ceil(v);
    case 17: return roundEven(v);
    case 18: return sin_exact(v);
    case 19: return cos_exact(v);
    case 20: return tan_exact(v);
    case 21: return asin_exact(v);
    case 22: return acos_exact(v);
    case 23: return atan_exact(v);
    case 24: return sinh_exact(v);
    case 25: return cosh_exact(v);
    case 26: return asinh_exact(v);
    case 27: return acosh_exact(v);
    case 28: return atanh_exact(v);
    case 29: return softplus(v);
    case 30: return v / (1.0 + abs(v));
    case 31: return v < 0.0 ? a * expm1(v) : v;
    case 32: return v > 0.0 ? b * v : a * b * expm1(v);
    case 33: return v > 0.0 ? v : a * expm1(v / a);
    case 34: return activate(v, ACT_GELU, a, b);
    case 35: return activate(v, ACT_GELU_TANH, a, b);
    case 36: return v * tanh_exact(softplus(v));
    case 37: return v > a || is_nan(v) ? v : 0.0;
    case 38: return v < -a ? v + b : (v > a ? v - b : (is_nan(v) ? v : 0.0));
    case 39: return v / (1.0 + exp(-a * v));
    default: return v;
    }
}
#else
C op(C v)
{
    switch (OP) {
#ifdef SIGNED
    case 0: return v < C(0) ? -v : v;
    case 1: return -v;
    case 2: return v > C(0) ? C(1) : (v < C(0) ? C(-1) : C(0));
    case 3: return v < C(0) ? C(0) : v;
#else
    case 2: return v > C(0) ? C(1) : C(0);
#endif
    case 40: return ~v;
    case 41: return v == C(0) ? C(1) : C(0);
    default: return v;
    }
}
#endif

void main()
{
    uint i = linear_id();
    if (i < p.n) {
#ifdef LANES4
        vec4 v = x[i];
        y[i] = vec4(op(v.x), op(v.y), op(v.z), op(v.w));
#else
        y[i] = T(op(C(x[i])));
#endif
    }
}
