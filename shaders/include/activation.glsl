// Activations that kernels apply to what they store; `code`, `a` and `b` are those of ops::Activation::code().
// Declare `code` as a specialization constant, so that the driver folds the choice:
//     SPEC(k, uint, ACTIVATION, 0);
//     y[i] = activate(v, ACTIVATION, p.act_a, p.act_b);
#ifndef ONEPOOL_ACTIVATION_GLSL
#define ONEPOOL_ACTIVATION_GLSL

#define ACT_NONE 0u
#define ACT_RELU 1u
#define ACT_LEAKY_RELU 2u
#define ACT_CLIP 3u
#define ACT_SIGMOID 4u
#define ACT_TANH 5u
#define ACT_HARD_SIGMOID 6u
#define ACT_HARD_SWISH 7u
#define ACT_SILU 8u

// GLSL leaves min, max and clamp of a NaN open: comparisons that are false for it keep it.
#define ONEPOOL_AT_LEAST(low, v) ((v) < (low) ? (low) : (v))
#define ONEPOOL_AT_MOST(high, v) ((v) > (high) ? (high) : (v))

// tanh without overflow for large arguments and without cancellation for small ones.
float activation_tanh(float x)
{
    float m = abs(x);
    float z = x * x;
    float small = x * (1.0 + z * (-0.33333311 + z * (0.13330476 + z * (-0.053387111 + z * 0.017988744))));
    float large = 1.0 - 2.0 / (exp(2.0 * m) + 1.0);
    return m < 0.5 ? small : (x < 0.0 ? -large : large);
}

float activate(float x, uint code, float a, float b)
{
    switch (code) {
    case ACT_RELU:
        return ONEPOOL_AT_LEAST(0.0, x);
    case ACT_LEAKY_RELU:
        return x < 0.0 ? a * x : x;
    case ACT_CLIP: {
        float y = ONEPOOL_AT_LEAST(a, x);
        return ONEPOOL_AT_MOST(b, y);
    }
    case ACT_SIGMOID:
        return 1.0 / (1.0 + exp(-x));
    case ACT_TANH:
        return activation_tanh(x);
    case ACT_HARD_SIGMOID: {
        float y = ONEPOOL_AT_LEAST(0.0, a * x + b);
        return ONEPOOL_AT_MOST(1.0, y);
    }
    case ACT_HARD_SWISH: {
        float y = ONEPOOL_AT_LEAST(0.0, x * (1.0 / 6.0) + 0.5);
        return x * ONEPOOL_AT_MOST(1.0, y);
    }
    case ACT_SILU:
        return x / (1.0 + exp(-x));
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
