// Functions of NaN that GLSL lacks. Functions of one float are in functions.glsl, which the build makes from the table in
// crates/onepool-expr/src/functions.rs.
#ifndef ONEPOOL_MATH_GLSL
#define ONEPOOL_MATH_GLSL

// These test bits, because compilers may assume that floats are not NaN.
bool is_nan(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bool is_inf(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u;
}

// max and min that keep a NaN of x.
float at_least(float x, float low)
{
    return is_nan(x) ? x : max(x, low);
}

float at_most(float x, float high)
{
    return is_nan(x) ? x : min(x, high);
}

#endif
