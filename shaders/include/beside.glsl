// What products of few rows do besides: they divide rows of the left operand by the root of their mean square and multiply
// them by a gain, as RMSNormalization does, and add a summand to the result. The root is a factor of the result. Include it
// after the parameters, which have k; a file has the bindings of a gain and of a summand.
#ifndef ONEPOOL_BESIDE_GLSL
#define ONEPOOL_BESIDE_GLSL

SPEC(20, uint, NORMED, 0u);
SPEC(21, uint, EPSILON, 0u);   // bits of what is added to the mean square
SPEC(22, uint, SUMMED, 0u);    // whether there is a summand

// The factor of a row's results, of the sum of its squares.
float row_factor(float squares)
{
    return 1.0 / sqrt(squares / float(p.k) + uintBitsToFloat(EPSILON));
}

#endif
