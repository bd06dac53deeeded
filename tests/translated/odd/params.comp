#version 450
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 32) in;
struct T { uvec2 a; float b[3]; };
layout(push_constant) uniform P { uint8_t a; uint16_t b; uvec3 c; double d; T t[2]; int64_t e; float16_t h; } p;
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void main() { uint i = gl_GlobalInvocationID.x; y[i*4u] = uint(p.a) + uint(p.b) + p.c[i % 3u]; y[i*4u+1u] = p.t[i & 1u].a.y + floatBitsToUint(p.t[1].b[i % 3u]); y[i*4u+2u] = uint(p.e >> 3) + uint(p.e >> 32); T q = p.t[1]; y[i*4u+3u] = q.a.x + floatBitsToUint(q.b[2]) + floatBitsToUint(float(p.h)); }
