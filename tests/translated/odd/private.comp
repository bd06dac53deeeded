#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
uint counter = 5u; vec2 pv = vec2(1.0, 2.0); uint tab[4] = uint[4](1u,2u,3u,4u);
void inc(uint k) { counter += k; pv.y *= 2.0; tab[k & 3u]++; }
void main() { uint i = gl_GlobalInvocationID.x; inc(x[i] & 7u); inc(2u); y[i*2u] = counter + tab[0] + tab[1] * 10u + tab[2] * 100u + tab[3] * 1000u; y[i*2u+1u] = floatBitsToUint(pv.y); }
