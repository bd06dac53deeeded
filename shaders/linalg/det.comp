// Determinants by Gaussian elimination with the largest pivot of each column, a matrix to an invocation.
// variant: f32  T=f32
// variant: f16  T=f16  EXT_FLOAT16=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) buffer Work { float a[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint rows;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint size = p.rows * p.rows;
    // Element e of every matrix lies next to that of the others, so that neighbours read neighbours.
#define AT(r, c) a[((r) * p.rows + (c)) * p.n + i]
    for (uint e = 0u; e < size; ++e) {
        a[e * p.n + i] = float(x[i * size + e]);
    }
    float det = 1.0;
    for (uint k = 0u; k < p.rows; ++k) {
        uint pivot = k;
        for (uint r = k + 1u; r < p.rows; ++r) {
            pivot = abs(AT(r, k)) > abs(AT(pivot, k)) ? r : pivot;
        }
        float top = AT(pivot, k);
        if (top == 0.0) {
            det = 0.0;
            break;
        }
        det *= pivot == k ? top : -top;
        for (uint c = k; pivot != k && c < p.rows; ++c) {
            float v = AT(k, c);
            AT(k, c) = AT(pivot, c);
            AT(pivot, c) = v;
        }
        for (uint r = k + 1u; r < p.rows; ++r) {
            float factor = AT(r, k) / top;
            for (uint c = k + 1u; c < p.rows; ++c) {
                AT(r, c) -= factor * AT(k, c);
            }
        }
    }
    y[i] = T(det);
}
