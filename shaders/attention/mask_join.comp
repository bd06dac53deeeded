// What is added to scores, with keys hidden that a padding mask hides: [batch, heads, rows, keys].
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer Added { T added[]; };
layout(set = 0, binding = 1, std430) readonly buffer Padding { int padding[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint heads, rows, keys;
    uint added_batch, added_head, added_row, added_key;
    uint added_len;                  // keys that are covered; those after are hidden
    uint padding_batch, padding_row;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint key = i % p.keys;
    uint row = i / p.keys % p.rows;
    uint head = i / p.keys / p.rows % p.heads;
    uint batch = i / p.keys / p.rows / p.heads;
    bool seen = key < p.added_len && padding[batch * p.padding_batch + row * p.padding_row + key] != 0;
    float v = uintBitsToFloat(0xff800000u);
    if (seen) {
        v = float(added[batch * p.added_batch + head * p.added_head + row * p.added_row + key * p.added_key]);
    }
    y[i] = T(v);
}
