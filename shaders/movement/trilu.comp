// The triangle of matrices above or below a diagonal; zero elsewhere.
// variant: b8    T=b8   EXT_INT8=1
// variant: b16   T=b16  EXT_INT16=1
// variant: b32   T=b32
// variant: b64   T=b64
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, UPPER, 1u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint rows, cols;
    int k;           // the diagonal, between -rows and cols
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int col = int(i % p.cols);
    int row = int(i / p.cols % p.rows);
    bool kept = UPPER != 0u ? col >= row + p.k : col <= row + p.k;
    y[i] = kept ? x[i] : T(0);
}
