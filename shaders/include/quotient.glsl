// A correctly rounded quotient: a device's own may be off by some units in the last place, and its fma may round
// twice.
#ifndef ONEPOOL_QUOTIENT_GLSL
#define ONEPOOL_QUOTIENT_GLSL

// One step of Newton's method with the exact product of the divisor and the device's quotient (T. J. Dekker,
// "A floating-point technique for extending the available precision", 1971).
float quotient(float a, float b)
{
    precise float q = a / b;
    precise float q_part = 4097.0 * q;
    precise float q_high = q_part - (q_part - q);
    precise float q_low = q - q_high;
    precise float b_part = 4097.0 * b;
    precise float b_high = b_part - (b_part - b);
    precise float b_low = b - b_high;
    precise float product = q * b;
    precise float error = ((q_high * b_high - product) + q_high * b_low + q_low * b_high) + q_low * b_low;
    precise float rest = (a - product) - error;
    precise float better = q + rest / b;
    return isnan(better) || isinf(better) ? q : better;
}

#endif
