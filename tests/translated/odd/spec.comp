#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
layout(constant_id = 0) const uint A = 3u; layout(constant_id = 1) const int B = -7; layout(constant_id = 2) const float C = 1.5; layout(constant_id = 3) const bool D = true;
layout(constant_id = 4) const uint N = 5u;
const uint E = A * 2u + uint(B + 10); const int F = D ? B / 2 : B % 3; const bool G = A > 2u && D; const uint H = (A << 3) ^ 0x55u; const ivec3 V = ivec3(B, F, B * F); const int VX = V.zxy.y;
shared uint sh[N * 2u];
void main() { uint i = gl_GlobalInvocationID.x; uint loc[N + 1u]; for (uint k = 0u; k <= N; k++) loc[k] = k * x[i]; if (i % 32u < N * 2u) sh[i % 32u] = x[i]; barrier();
 y[i*4u] = E + uint(F) + uint(G) + H + loc[N] + loc[i % N]; y[i*4u+1u] = floatBitsToUint(C * 2.0); y[i*4u+2u] = uint(VX) + uint(-B) + sh[i % (N*2u)]; y[i*4u+3u] = uint(!D) + uint(B >> 1) + (~A); }
