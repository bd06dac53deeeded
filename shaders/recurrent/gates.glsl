// Functions of recurrent layers' gates; `code` is that of ops::recurrent::Function.
#ifndef ONEPOOL_GATES_GLSL
#define ONEPOOL_GATES_GLSL

#include "math.glsl"

float gate_function(float x, uint code, float alpha, float beta)
{
    switch (code) {
    case 0u: // Affine
        return alpha * x + beta;
    case 1u: // Relu
        return at_least(x, 0.0);
    case 2u: // LeakyRelu
        return x < 0.0 ? alpha * x : x;
    case 3u: // ThresholdedRelu
        return x < alpha ? 0.0 : x;
    case 4u: // Tanh
        return tanh_exact(x);
    case 5u: // ScaledTanh
        return alpha * tanh_exact(beta * x);
    case 6u: // Sigmoid
        return 1.0 / (1.0 + exp(-x));
    case 7u: // HardSigmoid
        return at_most(at_least(alpha * x + beta, 0.0), 1.0);
    case 8u: // Elu
        return x < 0.0 ? alpha * expm1(x) : x;
    case 9u: // Softsign
        return x / (1.0 + abs(x));
    default: // Softplus
        return softplus(x);
    }
}

#endif
