// The order of TopK: by value, then by position; NaNs are above all numbers. Declare before including it
//     SPEC(1, uint, LARGEST, 1u);
// and the element type T; FLOAT where it is a float.
#ifndef ONEPOOL_ORDER_GLSL
#define ONEPOOL_ORDER_GLSL

#include "math.glsl"

bool above(T a, T b)
{
#ifdef FLOAT
    bool a_nan = is_nan(float(a));
    bool b_nan = is_nan(float(b));
    if (a_nan || b_nan) {
        return a_nan && !b_nan;
    }
#endif
    return a > b;
}

// Whether element `a` at position `i` comes before element `b` at position `j`.
bool comes_before(T a, uint i, T b, uint j)
{
    bool up = above(a, b);
    bool down = above(b, a);
    if (LARGEST != 0u) {
        return up || (!down && i < j);
    }
    return down || (!up && i < j);
}

#endif
