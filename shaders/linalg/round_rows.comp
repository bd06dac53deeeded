// Rows of float32 as float16: each times a power of two, so that its largest element is
// from 16384 to 32768. A work-group has a row.
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"

LOCAL_SIZE(0, 256);

layout(set = 0, binding = 0, std430) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uvec2 y[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Factors { float factors[]; };  // what makes rows of y those of x

layout(push_constant) uniform Params
{
    uint m, k;  // rows and their elements, a multiple of 4
} p;

const uint WITHOUT_SIGN = 0x7fffffffu;

shared uint largest;

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint quads = p.k / 4u;
    for (uint row = gl_WorkGroupID.x; row < p.m; row += gl_NumWorkGroups.x) {
        if (t == 0u) {
            largest = 0u;
        }
        barrier();
        uint own = 0u;
        for (uint i = t; i < quads; i += gl_WorkGroupSize.x) {
            uvec4 bits = floatBitsToUint(x[row * quads + i]) & WITHOUT_SIGN;
            own = max(own, max(max(bits.x, bits.y), max(bits.z, bits.w)));
        }
        atomicMax(largest, own);
        barrier();
        // Exponents of the factor and of its inverse, both of normal numbers; 1 for rows with what is no number.
        uint exponent = largest >> 23u;
        uint up = exponent == 255u ? 127u : uint(clamp(268 - int(exponent), 1, 253));
        float factor = uintBitsToFloat(up << 23u);
        for (uint i = t; i < quads; i += gl_WorkGroupSize.x) {
            vec4 v = x[row * quads + i] * factor;
            y[row * quads + i] = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
        }
        if (t == 0u) {
            factors[row] = uintBitsToFloat(254u - up << 23u);
        }
        barrier();
    }
}
