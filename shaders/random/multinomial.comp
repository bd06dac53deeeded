// Classes drawn with the probabilities exp(x) / sum(exp(x)) of each row, a sample to an invocation.
// variant: f32  T=f32
// variant: f16  T=f16  EXT_FLOAT16=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "philox.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, WORDS, 1u);   // of a class: 2 for int64

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uint y[]; };

layout(push_constant) uniform Params
{
    uvec2 key;
    uint n;
    uint samples;   // of each row
    uint classes;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint row = i / p.samples * p.classes;
    float top = float(x[row]);
    for (uint c = 1u; c < p.classes; ++c) {
        top = max(top, float(x[row + c]));
    }
    float total = 0.0;
    for (uint c = 0u; c < p.classes; ++c) {
        total += exp(float(x[row + c]) - top);
    }
    float aim = philox_units(p.key, i / 4u)[i % 4u] * total;
    float sum = 0.0;
    uint class_ = p.classes - 1u;
    for (uint c = 0u; c < p.classes; ++c) {
        sum += exp(float(x[row + c]) - top);
        if (sum > aim) {
            class_ = c;
            break;
        }
    }
    y[WORDS * i] = class_;
    if (WORDS == 2u) {
        y[2u * i + 1u] = 0u;
    }
}
