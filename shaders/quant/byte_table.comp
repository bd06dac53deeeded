// y[i] = table[x[i]] of n bytes.
// variant: b8 EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { uint8_t x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Table { uint8_t table[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uint8_t y[]; };

layout(push_constant) uniform Params { uint n; } p;

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        y[i] = table[uint(x[i])];
    }
}
