#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
uint f(uint a) {
    switch (a & 15u) {
    case 0u: return 7u;
    case 1u: a += 3u;
    case 2u: a *= 5u; break;
    case 9u: case 3u: { for (uint i = 0u; i < 7u; i++) { if (i == (a & 3u)) continue; if (i > 5u) break; a += i; } } break;
    case 4u: switch (a >> 4 & 3u) { case 0u: a += 1u; break; case 1u: return 99u; default: a ^= 0xffu; } break;
    default: a = ~a;
    }
    return a + 1u;
}
void main() { uint i = gl_GlobalInvocationID.x; y[i] = f(x[i]) + f(x[i] >> 3) * 17u; }
