// Resamples two axes, between which nothing lies, by tables: for every output element of an axis its taps'
// input elements and weights. Tables are [size][taps]; an input element of -1 asks for the extrapolation value.
// variant: f32    T=float
// variant: f16    T=float16_t EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, ROW_TAPS, 2u);
SPEC(2, uint, COL_TAPS, 2u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer RowTable { ivec2 rows[]; };
layout(set = 0, binding = 2, std430) readonly buffer ColTable { ivec2 cols[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint ow, oh;    // sizes of the output
    int iw, ih;     // sizes of the input
    uint inner;     // elements behind the second axis
    float outside;  // the extrapolation value
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i / p.inner;
    int lane = int(i - at * p.inner);
    uint ow = at % p.ow;
    at /= p.ow;
    uint oh = at % p.oh;
    int first = int(at / p.oh) * p.ih * p.iw;
    if (rows[oh * ROW_TAPS].x < 0 || cols[ow * COL_TAPS].x < 0) {
        y[i] = T(p.outside);
        return;
    }
    float sum = 0.0;
    for (uint r = 0u; r < ROW_TAPS; ++r) {
        ivec2 row = rows[oh * ROW_TAPS + r];
        int base = first + row.x * p.iw;
        float part = 0.0;
        for (uint c = 0u; c < COL_TAPS; ++c) {
            ivec2 col = cols[ow * COL_TAPS + c];
            part += intBitsToFloat(col.y) * float(x[(base + col.x) * int(p.inner) + lane]);
        }
        sum += intBitsToFloat(row.y) * part;
    }
    y[i] = T(sum);
}
