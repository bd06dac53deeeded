// Rows times rows of ggml's blocks by cooperative matrices; weights are rounded to float16 in local memory.
// variant: f16_128  T=f16 SIDE=128 EXT_FLOAT16
// variant: f16_64   T=f16 SIDE=64 EXT_FLOAT16
// variant: f16_32   T=f16 SIDE=32 EXT_FLOAT16
#version 450
#include "cooperative.glsl"
#include "types.glsl"
#include "spec.glsl"

LOCAL_SIZE(0, 128);               // all subgroups

#include "blocks.glsl"
SPEC(2, uint, BIASED, 0u);

layout(set = 0, binding = 0, std430) restrict readonly buffer A { uvec4 a[]; };
layout(set = 0, binding = 2, std430) restrict readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 3, std430) restrict writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint m, n, k;
    uint row_bytes;  // of the blocks of one column
} p;

const float LARGEST = 65504.0;  // of float16

struct Raw
{
    uvec4 words[2];
};

Raw fetch(uint column, uint k)
{
    Raw raw;
    uint begin = column * p.row_bytes;
    vec2 scale = block_scale(begin, k);
    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
        vec4 v = fma(block_codes(begin, k + 4u * i), vec4(scale.x), vec4(scale.y));
        v = clamp(v, -LARGEST, LARGEST);
        uvec2 both = uvec2(packHalf2x16(v.xy), packHalf2x16(v.zw));
        raw.words[i / 2u][i % 2u * 2u] = both.x;
        raw.words[i / 2u][i % 2u * 2u + 1u] = both.y;
    }
    return raw;
}

void decode(Raw raw, out uvec4 words[2])
{
    words = raw.words;
}

void result(uint r, uint n, float sum)
{
    y[r * p.n + n] = T(BIASED != 0u ? sum + float(bias[n]) : sum);
}

#include "coded_matrix.glsl"
