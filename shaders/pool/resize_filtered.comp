// Resize of the last two axes, read through an image of planes one below another: the hardware interpolates.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0) uniform sampler2D x;
layout(set = 0, binding = 1, std430) readonly buffer Rows { float rows[]; };   // places in a plane, in texels
layout(set = 0, binding = 2, std430) readonly buffer Cols { float cols[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint ow, oh;   // sizes of the output
    uint ih;       // rows of a plane
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint line = i / p.ow;
    float plane = float(line / p.oh * p.ih);
    // Never beyond the centres of the first and the last row, so that planes do not mix.
    vec2 at = vec2(cols[i % p.ow], plane + rows[line % p.oh]);
    y[i] = T(textureLod(x, at, 0.0).x);
}
