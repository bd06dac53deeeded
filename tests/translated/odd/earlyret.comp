#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
uint g(uint v, out bool found) { found = false; for (uint a = 0u; a < 10u; a++) { for (uint b = 0u; b < 10u; b++) { if (a * b == v % 50u) { found = true; return a * 16u + b; } if (b > a + 4u) break; } if (a == 8u) return 77u; } return 99u; }
void main() { uint i = gl_GlobalInvocationID.x; bool f; uint r = g(x[i], f); if (!f) { y[i] = r + 1000u; return; } if (r > 64u) { if (r > 100u) return; y[i] = 3u; } else { y[i] = r; } y[i] += 7u; }
