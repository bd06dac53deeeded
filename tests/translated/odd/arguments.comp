#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void bump(inout uint v, uint k) { v += k; }
uint pick(uint a[4], uint k) { return a[k & 3u]; }
void main() { uint i = gl_GlobalInvocationID.x; bump(y[i], x[i]); uint a[4]; for (int k = 0; k < 4; k++) a[k] = x[i + uint(k)]; y[i] += pick(a, x[i]); const uint T[6] = uint[](3u,1u,4u,1u,5u,9u); y[i] ^= T[x[i] % 6u]; }
