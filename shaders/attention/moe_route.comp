// Experts for tokens: the largest of the router's numbers for each, the first one of equal numbers, and the factors
// of what the experts will answer.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, TOP, 1u);         // experts of a token
SPEC(2, uint, NORMALIZE, 0u);   // whether the factors of a token sum to one
SPEC(3, uint, GIVEN, 0u);       // whether factors are given, else they are the softmax of the router's numbers
SPEC(4, uint, SPARSE, 0u);      // whether each is the share among those not chosen yet and nearly as large

layout(set = 0, binding = 0, std430) readonly buffer Router { T router[]; };
layout(set = 0, binding = 1, std430) readonly buffer Given { T given[]; };
layout(set = 0, binding = 2, std430) buffer Chosen { uint chosen[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Factors { float factors[]; };

layout(push_constant) uniform Params { uint tokens, experts; float sparse; } p;

// The number of an expert, or its given factor; the least number for NaN.
float number(uint at)
{
    float v = float(router[at]);
    return (floatBitsToUint(v) & 0x7fffffffu) > 0x7f800000u ? -3.4028235e38 : clamp(v, -3.4028235e38, 3.4028235e38);
}

void main()
{
    uint token = linear_id();
    if (token >= p.tokens) {
        return;
    }
    uint first = token * p.experts;
    uint from = token * TOP;
    float top = 0.0;
    float total = 0.0;
    float last = 0.0;
    uint expert = 0u;
    for (uint s = 0u; s < TOP; ++s) {
        // The largest after the one before it in the order of numbers and experts.
        float most = 0.0;
        uint found = p.experts;
        for (uint e = 0u; e < p.experts; ++e) {
            float v = number(first + e);
            bool after = s == 0u || v < last || (v == last && e > expert);
            if (after && (found == p.experts || v > most)) {
                most = v;
                found = e;
            }
        }
        if (SPARSE != 0u) {
            float sum = 0.0;
            for (uint e = 0u; e < p.experts; ++e) {
                float v = number(first + e);
                bool after = s == 0u || v < last || (v == last && e > expert);
                sum += after && most - v <= p.sparse * max(abs(v), most) ? exp(v - most) : 0.0;
            }
            factors[from + s] = 1.0 / sum;
        }
        last = most;
        expert = found;
        top = s == 0u ? most : top;
        total += GIVEN != 0u ? float(given[first + expert]) : exp(most - top);
        chosen[from + s] = expert;
    }
    if (SPARSE != 0u) {
        return;
    }
    if (NORMALIZE == 0u) {
        total = 1.0;
        if (GIVEN == 0u) {
            total = 0.0;
            for (uint e = 0u; e < p.experts; ++e) {
                total += exp(number(first + e) - top);
            }
        }
    }
    for (uint s = 0u; s < TOP; ++s) {
        uint at = first + chosen[from + s];
        factors[from + s] = (GIVEN != 0u ? float(given[at]) : exp(number(at) - top)) / total;
    }
}
