// Activations that kernels apply to what they store; `code`, `a` and `b` are those of ops::Activation::code().
// Declare `code` as a specialization constant, so that the driver folds the choice:
//     SPEC(k, uint, ACTIVATION, 0);
//     y[i] = activate(v, ACTIVATION, p.act_a, p.act_b);
#ifndef ONEPOOL_ACTIVATION_GLSL
#define ONEPOOL_ACTIVATION_GLSL

#include "math.glsl"

#define ACT_NONE 0u
#define ACT_RELU 1u
#define ACT_LEAKY_RELU 2u
#define ACT_CLIP 3u
#define ACT_SIGMOID 4u
#define ACT_TANH 5u
#define ACT_HARD_SIGMOID 6u
#define ACT_HARD_SWISH 7u
#define ACT_SILU 8u
#define ACT_GELU 9u
#define ACT_GELU_TANH 10u

float activate(float x, uint code, float a, float b)
{
    switch (code) {
    case ACT_RELU:
        return at_least(x, 0.0);
    case ACT_LEAKY_RELU:
        return x < 0.0 ? a * x : x;
    case ACT_CLIP:
        return at_most(at_least(x, a), b);
    case ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case ACT_TANH:
        return tanh_exact(x);
    case ACT_HARD_SIGMOID:
        return at_most(at_least(a * x + b, 0.0), 1.0);
    case ACT_HARD_SWISH:
        return x * at_most(at_least(x * (1.0 / 6.0) + 0.5, 0.0), 1.0);
    case ACT_SILU:
        return x / (1.0 + exp(-x));
    case ACT_GELU:
        return 0.5 * x * (1.0 + erf(x * 0.707106781));
    case ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh_exact(0.797884561 * (x + 0.044715 * x * x * x)));
    default:
        return x;
    }
}

// The same for four elements.
vec4 activate4(vec4 v, uint code, float a, float b)
{
    return vec4(activate(v.x, code, a, b), activate(v.y, code, a, b), activate(v.z, code, a, b),
                activate(v.w, code, a, b));
}

#endif
