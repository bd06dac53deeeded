// The places that affine maps give the elements of images; an invocation computes one place.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, RANK, 2u);

layout(set = 0, binding = 0, std430) readonly buffer Theta { T theta[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;                 // places
    uint d, h, w;           // sizes of an image
    float d_first, d_step;  // place of an element along an axis
    float h_first, h_step;
    float w_first, w_step;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint line = i / p.w;
    uint slice = line / p.h;
    float place[3];
    place[0] = p.w_first + float(i - line * p.w) * p.w_step;
    place[1] = p.h_first + float(line - slice * p.h) * p.h_step;
    place[2] = p.d_first + float(slice % p.d) * p.d_step;
    uint first = slice / p.d * RANK * (RANK + 1u);
    for (uint r = 0u; r < RANK; ++r) {
        uint row = first + r * (RANK + 1u);
        float sum = float(theta[row + RANK]);
        for (uint c = 0u; c < RANK; ++c) {
            sum += float(theta[row + c]) * place[c];
        }
        y[i * RANK + r] = T(sum);
    }
}
