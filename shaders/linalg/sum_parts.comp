// The sums of products whose depth was shared out between work-groups (parts.glsl), each with its factor, summand and function.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "activation.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, BIASED, 0u);
SPEC(2, uint, ACTIVATION, 0u);
SPEC(3, uint, SLOPED, 0u);        // whether C has the summands of rows and then a factor of each for what is below 0: LeakyRelu's

layout(set = 0, binding = 0, std430) readonly buffer Sums { float sums[]; };
layout(set = 0, binding = 1, std430) readonly buffer C { T c[]; };
#define OUTPUT 2
#define SUMMAND 3
#include "output.glsl"

layout(push_constant) uniform Params
{
    uint n;             // elements of the output
    uint parts;
    uint rows, cols;    // of a product
    uint c_row, c_col;  // strides of rows and columns of the summand
    float alpha, beta;
    float act_a, act_b;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    // Loads of one turn do not wait for one another.
    float v = 0.0;
    uint part = 0u;
    for (; part + 4u <= p.parts; part += 4u) {
        vec4 four;
        [[unroll]] for (uint q = 0u; q < 4u; ++q) {
            four[q] = sums[(part + q) * p.n + i];
        }
        v += (four.x + four.y) + (four.z + four.w);
    }
    for (; part < p.parts; ++part) {
        v += sums[part * p.n + i];
    }
    v *= p.alpha;
    if (BIASED != 0u) {
        v += p.beta * float(c[i / p.cols % p.rows * p.c_row + i % p.cols * p.c_col]);
    }
    float a = SLOPED != 0u ? float(c[p.rows + i / p.cols % p.rows]) : p.act_a;
    y[i] = T(activate(plus_summand(v, i), ACTIVATION, a, p.act_b));
}
