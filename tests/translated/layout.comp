// Structures, vectors of three, arrays in structures, lengths of arrays, half precision in memory.
#version 450
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 8) in;
struct Item { vec3 at; float weight; vec3 speed; uint tags[3]; vec2 pair; };
layout(set = 0, binding = 0, std430) buffer Items { uvec4 head; Item items[]; };
layout(set = 0, binding = 1, std430) readonly buffer H { float16_t h[]; };
layout(set = 0, binding = 2, std430) writeonly buffer G { f16vec4 g[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Params { vec3 shift; uint n; vec2 scale[2]; ivec3 tail; } p;
const float TABLE[5] = float[5](0.5, 1.5, -2.0, 4.0, 8.0);
float memo[4];

float dot_of(in Item item, inout float sums[2])
{
    sums[0] += item.weight;
    sums[1] -= item.pair.y;
    memo[item.tags[1] & 3u] += 1.0;
    return dot(item.at, item.speed);
}

void main()
{
    uint i = gl_GlobalInvocationID.x;
    for (uint k = 0u; k < 4u; k++) {
        memo[k] = float(k);
    }
    if (i >= p.n) {
        return;
    }
    Item item = items[i];
    item.at += p.shift;
    float sums[2] = float[2](1.0, 2.0);
    float product = dot_of(item, sums);
    item.speed = item.at.zyx * float(head.y) + float(items.length());
    item.tags[i % 3u] = uint(TABLE[i % 5u] * 2.0 + 8.0);
    item.pair = item.pair.yx * p.scale[i & 1u] + vec2(p.tail.yz);
    items[i] = item;
    float v = float(h[i]);
    g[i] = f16vec4(vec4(v, v * 3.0, 1.0 / 3.0, product));
    y[i] = product + sums[0] * 16.0 + sums[1] * 256.0 + memo[item.tags[1] & 3u];
}
