// n random numbers, four to an invocation.
// variant: f32  T=f32
// variant: f16  T=f16  EXT_FLOAT16=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "philox.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, NORMAL, 0u);  // normally distributed, rather than evenly

layout(set = 0, binding = 0, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uvec2 key;
    uint n;
    float start;
    float scale;
} p;

vec2 normals(vec2 u)
{
    float angle = 3.14159265 * (2.0 * u.y - 1.0);
    return sqrt(-2.0 * log(1.0 - u.x)) * vec2(cos(angle), sin(angle));
}

void main()
{
    uint block = linear_id();
    if (block >= (p.n + 3u) / 4u) {
        return;
    }
    vec4 u = philox_units(p.key, block);
    if (NORMAL != 0u) {
        u = vec4(normals(u.xy), normals(u.zw));
    }
    u = p.start + p.scale * u;
    for (uint k = 0u; k < 4u; ++k) {
        if (4u * block + k < p.n) {
            y[4u * block + k] = T(u[k]);
        }
    }
}
