// The numbers of the valid rows of a cache of codes (coded_rows.glsl): an invocation does a word of them.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "coded_rows.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, GIVEN, 0u);  // whether the last valid row of each sequence is given

layout(set = 0, binding = 0, std430) readonly buffer Codes { uint codes[]; };
layout(set = 0, binding = 1, std430) readonly buffer Scales { float scales[]; };
layout(set = 0, binding = 2, std430) readonly buffer Last { int last[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Cache { T cache[]; };

layout(push_constant) uniform Params
{
    uint n;                   // words of codes, without their scales
    uint heads, rows, head;
    uint row_words;
    uint valid;               // rows, where they are not given
} p;

CODED_ELEMENT(element, codes, scales, K_CHANNELS, p.head)

void main()
{
    uint id = linear_id();
    if (id >= p.n) {
        return;
    }
    uint words = code_words(p.head);
    uint row = id / words;
    uint head = row / p.rows;
    int valid = GIVEN != 0u ? last[head / p.heads] + 1 : int(p.valid);
    if (int(row % p.rows) >= valid) {
        return;
    }
    uint first = id % words * (32u / CODE_BITS);
    uint end = min(first + 32u / CODE_BITS, p.head);
    for (uint i = first; i < end; ++i) {
        cache[row * p.head + i] = T(element(row * p.row_words, i, head % p.heads * p.head));
    }
}
