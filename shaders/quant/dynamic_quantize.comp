// Numbers as bytes by the scale and the zero point of their own interval, which every work-group finds: from the intervals of
// shares, or from the numbers where there are no shares and it is alone.
// variant: u8  EXT_STORAGE8
#version 450
#include "types.glsl"
#include "quotient.glsl"

const uint LANES = 128u;  // rust: invocations of a work-group
layout(local_size_x = 128) in;

layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Ranges { vec2 ranges[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { uint8_t y[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Scale { float scale[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Zero { uint8_t zero[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint shares;
} p;

shared vec2 parts[LANES];

void main()
{
    uint local = gl_LocalInvocationID.x;
    vec2 range = vec2(0.0);
    for (uint i = local; i < p.shares; i += LANES) {
        range = vec2(min(range.x, ranges[i].x), max(range.y, ranges[i].y));
    }
    for (uint i = local; p.shares == 0u && i < p.n; i += LANES) {
        range = vec2(min(range.x, x[i]), max(range.y, x[i]));
    }
    parts[local] = range;
    barrier();
    for (uint step = LANES / 2u; step > 0u; step /= 2u) {
        if (local < step) {
            vec2 other = parts[local + step];
            range = vec2(min(range.x, other.x), max(range.y, other.y));
            parts[local] = range;
        }
        barrier();
    }
    range = parts[0];
    float s = range.x == range.y ? 1.0 : quotient(range.y - range.x, 255.0);
    int z = int(roundEven(clamp(0.0 - quotient(range.x, s), 0.0, 255.0)));
    for (uint i = gl_GlobalInvocationID.x; i < p.n; i += gl_NumWorkGroups.x * LANES) {
        float q = quotient(x[i], s);
        int whole = int(clamp(roundEven(q), -65536.0, 65536.0)) + z;
        y[i] = uint8_t(isnan(q) ? 0 : clamp(whole, 0, 255));
    }
    if (gl_GlobalInvocationID.x == 0u) {
        scale[0] = s;
        zero[0] = uint8_t(uint(z));
    }
}
