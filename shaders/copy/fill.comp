// Sets n words to one value.
#version 450
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) writeonly buffer Dst { uint dst[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint value;
} p;

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        dst[i] = p.value;
    }
}
