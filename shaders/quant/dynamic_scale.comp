// The scale and the zero point of bytes for numbers from the smallest to the largest of `ranges`.
// variant: u8  EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "quotient.glsl"

layout(local_size_x = 1) in;

layout(set = 0, binding = 0, std430) readonly buffer Ranges { vec2 ranges[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Scale { float scale[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Zero { uint8_t zero[]; };

layout(push_constant) uniform Params
{
    uint n;
} p;

void main()
{
    vec2 range = vec2(0.0);
    for (uint i = 0u; i < p.n; ++i) {
        range = vec2(min(range.x, ranges[i].x), max(range.y, ranges[i].y));
    }
    float s = range.x == range.y ? 1.0 : quotient(range.y - range.x, 255.0);
    scale[0] = s;
    zero[0] = uint8_t(uint(roundEven(clamp(0.0 - quotient(range.x, s), 0.0, 255.0))));
}
