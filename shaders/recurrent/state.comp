// Copies the states of a recurrent layer between two layouts of [direction][batch][element].
// variant: f32       S=f32      D=f32
// variant: f16       S=f16  D=f16 EXT_STORAGE16
// variant: f16_f32   S=f16  D=f32     EXT_STORAGE16
// variant: f32_f16   S=f32      D=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer From { S from[]; };
layout(set = 0, binding = 1, std430) writeonly buffer To { D to[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint batch, hidden;
    uint from_dir, from_batch;
    uint to_dir, to_batch;
} p;

void main()
{
    uint i = linear_id();
    if (i < p.n) {
        uint j = i % p.hidden;
        uint row = i / p.hidden;
        uint b = row % p.batch;
        uint dir = row / p.batch;
        to[dir * p.to_dir + b * p.to_batch + j] = D(from[dir * p.from_dir + b * p.from_batch + j]);
    }
}
