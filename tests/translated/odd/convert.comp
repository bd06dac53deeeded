#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void main() { uint i = gl_GlobalInvocationID.x; float f = float(int(x[i] & 0xffffu) - 30000) / 16.0; ivec3 a = ivec3(f, f + 0.5, -f); uvec2 b = uvec2(abs(f), 3.7); vec3 c = vec3(a) + vec3(x[i], x[i+1u], x[i+2u]); bvec3 d = bvec3(a); bvec2 e = bvec2(f, 0.0); y[i*4u] = uint(a.x+a.y*3+a.z*5); y[i*4u+1u] = b.x+b.y; y[i*4u+2u] = floatBitsToUint(c.x+c.y); y[i*4u+3u] = uint(d.x)+uint(e.y)*2u+uint(vec2(e).x); }
