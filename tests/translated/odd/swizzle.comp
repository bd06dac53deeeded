#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void main() { uint i = gl_GlobalInvocationID.x; uvec4 v = uvec4(x[i], x[i+1u], x[i+2u], x[i+3u]); v.wx = v.yz; v.yzw += v.xxx; uvec3 t = v.zyx; t[i % 3u] = 9u; t.xz = t.zx; v = uvec4(t.yy, v[i & 3u], t[2]); bvec4 b = lessThan(v, v.wzyx); bvec4 c = not(b); b.xy = c.zw; b[i & 3u] = true;
 y[i*4u] = v.x + v.y * 3u + v.z * 5u + v.w * 7u; y[i*4u+1u] = uint(any(b)) + 2u * uint(all(c)) + 4u * uint(b.z) + 8u*uint(b[i % 4u]); uvec4 m = mix(v, v.yxwz, b); y[i*4u+2u] = m.x ^ m.y ^ (m.z + m.w); bvec2 e = equal(v.xy, v.zw); y[i*4u+3u] = uint(e.x) + uint(e == b.xy) + uint(v != m) * 4u + uint(uvec4(b).x) + uint(ivec4(b).y); }
