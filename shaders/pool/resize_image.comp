// Resize of the last two axes, read through an image of planes one below another: sums of taps, by tables.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, ROW_TAPS, 2u);
SPEC(2, uint, COL_TAPS, 2u);

layout(set = 0, binding = 0) uniform sampler2D x;
layout(set = 0, binding = 1, std430) readonly buffer Rows { ivec2 rows[]; };   // input element, bits of its weight
layout(set = 0, binding = 2, std430) readonly buffer Cols { ivec2 cols[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint ow, oh;     // sizes of the output
    int ih;          // rows of a plane
    float outside;   // where a table says -1
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint col = (i % p.ow) * COL_TAPS;
    uint line = i / p.ow;
    uint row = (line % p.oh) * ROW_TAPS;
    int plane = int(line / p.oh) * p.ih;
    if (rows[row].x < 0 || cols[col].x < 0) {
        y[i] = T(p.outside);
        return;
    }
    float acc = 0.0;
    for (uint r = 0u; r < ROW_TAPS; ++r) {
        ivec2 tap = rows[row + r];
        float sum = 0.0;
        for (uint c = 0u; c < COL_TAPS; ++c) {
            ivec2 across = cols[col + c];
            sum += intBitsToFloat(across.y) * texelFetch(x, ivec2(across.x, plane + tap.x), 0).x;
        }
        acc += intBitsToFloat(tap.y) * sum;
    }
    y[i] = T(acc);
}
