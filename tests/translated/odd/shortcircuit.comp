#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
uint side(inout uint c) { c++; return c; }
void main() { uint i = gl_GlobalInvocationID.x; uint c = 0u; bool a = (x[i] > 50u && side(c) > 0u) || (side(c) == 1u && x[i+1u] > 3u); uint d = a ? side(c) : (x[i] & 1u) == 0u ? side(c) * 2u : 5u; bool e = a ^^ (d > 2u); y[i] = c * 100u + d + uint(e); while (c < 10u && side(c) < 8u) y[i] += c; }
