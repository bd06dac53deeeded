#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void main() {
  uint i = gl_GlobalInvocationID.x; uint v = x[i] & 1023u; uint s = 0u;
  uint a = 0u;
  do {
    uint b = 0u;
    while (true) {
      if (b > (v & 7u)) break;
      b++;
      if ((b & 1u) == 0u) continue;
      uint c = 10u;
      while (c-- > 0u) { if (c == v % 11u) { s += 100u; break; } if (c == 5u) continue; s += c; }
      if (s > 5000u) { y[i] = s; return; }
    }
    a++;
    if (a == 4u) continue;
    s += a * b;
  } while (a < (v & 15u));
  for (;;) { s = s * 2u + 1u; if (s > 100000u) break; }
  y[i] = s;
}
