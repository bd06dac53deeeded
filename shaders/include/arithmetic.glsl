// Arithmetic of two elements of type `C` that GLSL lacks or leaves undefined. FLOAT: C is a float. FLOAT64: C is a double.
// SIGNED: C is a signed integer. SHIFT_WIDTH: the number of bits of an element.
#ifndef ONEPOOL_ARITHMETIC_GLSL
#define ONEPOOL_ARITHMETIC_GLSL

#include "math.glsl"

#if defined(FLOAT) || defined(FLOAT64)
// No contraction to fma.
#define EXACT precise

C quotient(C v, C w)
{
    return v / w;
}
#endif

#ifdef FLOAT
#define ARITHMETIC

bool no_number(float v)
{
    return is_nan(v);
}

// pow as C defines it; in GLSL negative bases are undefined.
float power(float v, float e)
{
    if (e == 0.0 || v == 1.0) {
        return 1.0;
    }
    if (is_nan(v) || is_nan(e)) {
        return is_nan(v) ? v : e;
    }
    // Small whole exponents are frequent, and must be exact.
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

// The remainder with the sign of the dividend.
float remainder(float v, float d)
{
    float r = abs(v) - abs(d) * trunc(abs(v) / abs(d));
    // The quotient is rounded: the remainder may be off by one divisor.
    r = r < 0.0 ? r + abs(d) : (r >= abs(d) ? r - abs(d) : r);
    r = is_inf(d) && !is_inf(v) && !is_nan(v) ? abs(v) : r;
    return floatBitsToUint(v) >> 31 != 0u ? -r : r;
}

#elif defined(FLOAT64)

bool no_number(double v)
{
    return isnan(v);
}

#elif !defined(COMPARES)
#define INTEGERS
#define ARITHMETIC
#define EXACT

bool no_number(C v)
{
    return false;
}

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

C remainder(C v, C w)
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

// Shifts by less than 0, or by the width or more, leave only copies of the sign.
C shift_left(C v, C w)
{
#ifdef SIGNED
    return w >= C(0) && w < C(SHIFT_WIDTH) ? v << w : C(0);
#else
    return w < C(SHIFT_WIDTH) ? v << w : C(0);
#endif
}

C shift_right(C v, C w)
{
#ifdef SIGNED
    return v >> (w >= C(0) && w < C(SHIFT_WIDTH) ? w : C(SHIFT_WIDTH - 1));
#else
    return w < C(SHIFT_WIDTH) ? v >> w : C(0);
#endif
}
#endif

#endif
