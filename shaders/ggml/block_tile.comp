// Rows times rows of ggml's blocks: a work-group computes 64 x 64 elements, weights are decoded into its memory.
// variant: f32  T=f32 VEC=vec4
// variant: f16  T=f16 VEC=f16vec4 EXT_STORAGE16
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"

layout(local_size_x = 16, local_size_y = 16) in;

#include "blocks.glsl"
SPEC(2, uint, BIASED, 0u);

layout(set = 0, binding = 0, std430) restrict readonly buffer A { VEC a[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint m, n, k;
    uint row_bytes;  // of the blocks of one column
} p;

#include "square_tile.glsl"

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint row = gl_WorkGroupID.y * TILE;
    uint col = gl_WorkGroupID.x * TILE;
    clear_sums();
    // Four neighbouring elements of one row, and as many of one column.
    uint line = t / 4u;
    uint quad = 4u * (t % 4u);
    for (uint k0 = 0u; k0 < p.k; k0 += DEPTH) {
        vec4 left_codes = vec4(0.0);
        vec4 weights = vec4(0.0);
        if (row + line < p.m) {
            left_codes = vec4(a[((row + line) * p.k + k0 + quad) / 4u]);
        }
        if (col + line < p.n) {
            uint begin = (col + line) * p.row_bytes;
            vec2 scale = block_scale(begin, k0);
            weights = fma(block_codes(begin, k0 + quad), vec4(scale.x), vec4(scale.y));
        }
        [[unroll]] for (uint i = 0u; i < 4u; ++i) {
            a_tile[quad + i][line] = left_codes[i];
            b_tile[quad + i][line] = weights[i];
        }
        sum_tiles();
    }
    leave_sums(row, col);
}
