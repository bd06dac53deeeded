#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void main() {
  uint i = gl_GlobalInvocationID.x; uint v = x[i]; uint s = 0u;
  for (uint k = 0u; k < 20u; k++) {
     switch ((v >> k) & 3u) {
     case 0u: continue;
     case 1u: s += k; break;
     case 2u: if (s > 40u) { s -= 40u; continue; } s += 2u; 
     default: s = s * 3u + 1u; if ((s & 0x1000u) != 0u) { y[i] = s; return; }
     }
     s ^= k;
  }
  y[i] = s + 5u;
}
