// Ones with the probabilities x (Bernoulli), or x scaled where a random number is not below a ratio and 0
// elsewhere, with the mask of kept elements (Dropout): four elements to an invocation.
// variant: f32  T=f32      EXT_INT8=1
// variant: f16  T=f16  EXT_INT8=1  EXT_FLOAT16=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "philox.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, DROPOUT, 0u);
SPEC(2, uint, MASK, 0u);    // whether the mask is wanted

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Mask { uint8_t mask[]; };

layout(push_constant) uniform Params
{
    uvec2 key;
    uint n;
    float ratio;
    float scale;
} p;

void main()
{
    uint block = linear_id();
    if (block >= (p.n + 3u) / 4u) {
        return;
    }
    vec4 u = philox_units(p.key, block);
    for (uint k = 0u; k < 4u; ++k) {
        uint i = 4u * block + k;
        if (i >= p.n) {
            return;
        }
        if (DROPOUT == 0u) {
            y[i] = T(u[k] < float(x[i]) ? 1.0 : 0.0);
            continue;
        }
        bool stays = u[k] >= p.ratio;
        y[i] = T(stays ? float(x[i]) * p.scale : 0.0);
        if (MASK != 0u) {
            mask[i] = uint8_t(stays ? 1u : 0u);
        }
    }
}
