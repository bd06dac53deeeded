// Activations that kernels apply to their results; `code`, `a` and `b` are those of ops::Activation::code().
// Declare `code` as a specialization constant, so that the driver folds the choice:
//     SPEC(k, uint, ACTIVATION, 0);
//     y[i] = activate(v, ACTIVATION, p.act_a, p.act_b);
#ifndef ONEPOOL_ACTIVATION_GLSL
#define ONEPOOL_ACTIVATION_GLSL

#include "functions.glsl"

// `activate` of four elements.
vec4 activate4(vec4 v, uint code, float a, float b)
{
    return vec4(activate(v.x, code, a, b), activate(v.y, code, a, b), activate(v.z, code, a, b),
                activate(v.w, code, a, b));
}

#endif
