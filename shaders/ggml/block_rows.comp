// y[i] = row index[i] of rows of ggml's blocks, as numbers; an index out of range reads the nearest row. An invocation
// decodes four elements.
// variant: f32  T=f32 VEC=vec4
// variant: f16  T=f16 VEC=f16vec4 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
#include "blocks.glsl"
SPEC(2, uint, INDEX_WORDS, 2u);  // words of one index, of which the first counts

layout(set = 0, binding = 0, std430) restrict readonly buffer Index { int index[]; };
layout(set = 0, binding = 2, std430) restrict writeonly buffer Y { VEC y[]; };

layout(push_constant) uniform Params
{
    uint n;          // quads of elements of the result
    uint k;          // elements of a row
    uint rows;
    uint row_bytes;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint quads = p.k / 4u;
    int at = index[i / quads * INDEX_WORDS];
    at = clamp(at < 0 ? at + int(p.rows) : at, 0, int(p.rows) - 1);
    uint row = uint(at) * p.row_bytes;
    uint k = i % quads * 4u;
    vec2 scale = block_scale(row, k);
    y[i] = VEC(fma(block_codes(row, k), vec4(scale.x), vec4(scale.y)));
}
