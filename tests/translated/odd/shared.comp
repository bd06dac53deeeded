#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
shared uint s[32]; shared vec3 sv[32]; shared struct { uint a; float b[4]; } st; shared bool flags[32];
void main() {
  uint l = gl_LocalInvocationIndex, i = gl_GlobalInvocationID.x;
  s[l] = x[i]; sv[l] = vec3(float(x[i] & 7u)); flags[l] = (x[i] & 1u) == 1u;
  if (l == 0u) { st.a = 5u; for (int k = 0; k < 4; k++) st.b[k] = float(k) * 2.0; }
  barrier();
  for (uint d = 16u; d > 0u; d >>= 1) { if (l < d) { s[l] += s[l + d]; sv[l].y += sv[l + d].y; sv[l + d].x = 3.0; } memoryBarrierShared(); barrier(); }
  uint c = 0u; for (int k = 0; k < 32; k++) c += flags[k] ? 1u : 0u;
  y[i*4u] = s[0] + s[l]; y[i*4u+1u] = floatBitsToUint(sv[0].y + sv[l].x + sv[l].z); y[i*4u+2u] = c + st.a; y[i*4u+3u] = floatBitsToUint(st.b[l & 3u]);
}
