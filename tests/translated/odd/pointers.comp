#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
struct S { float a; vec3 b; uint c[3]; };
void swap_(inout float a, inout float b) { float t = a; a = b; b = t; }
void fill(out S s, uint v) { s.a = float(v); s.b = vec3(v, v+1u, v+2u); s.c[0] = v; s.c[1] = v*2u; s.c[2] = v*3u; }
uint deep(inout S s, inout uint arr[4], int k) { s.b.yz += vec2(1.0); s.c[k] += arr[k]; arr[k+1] = s.c[k]; return arr[k]; }
S make(uint v) { S s; fill(s, v); s.b = s.b.zxy; return s; }
S arrs[2];
void main() {
  uint i = gl_GlobalInvocationID.x; uint v = x[i] & 255u;
  S s; fill(s, v); uint arr[4] = uint[4](1u, 2u, 3u, v);
  uint r = deep(s, arr, int(v % 3u));
  swap_(s.a, s.b.y);
  S t = make(v + 1u);
  swap_(t.b.x, s.b[v % 3u]);
  arrs[v & 1u] = t; arrs[(v & 1u) ^ 1u] = s;
  swap_(arrs[0].a, arrs[1].b.z);
  deep(arrs[v&1u], arr, 1);
  y[i*8u] = r; y[i*8u+1u] = floatBitsToUint(s.a + t.b.x); y[i*8u+2u] = arr[0]+arr[1]*3u+arr[2]*5u+arr[3]*7u;
  y[i*8u+3u] = floatBitsToUint(dot(arrs[0].b, vec3(1,2,3))); y[i*8u+4u] = arrs[1].c[2] + arrs[0].c[0]; y[i*8u+5u] = uint(s == t);
  y[i*8u+6u] = floatBitsToUint(arrs[1].a); y[i*8u+7u] = uint(arrs[0] != s);
}
