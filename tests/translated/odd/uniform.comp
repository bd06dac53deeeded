#version 450
layout(local_size_x = 8, local_size_y = 4) in;
struct I { vec3 a; float b; };
layout(set = 0, binding = 0, std140) uniform U { float f[5]; vec3 v; I s[3]; mat3 m; layout(offset=512) ivec2 w; } u;
layout(set = 0, binding = 1, std430) buffer Y { float y[]; };
void main() { uint i = gl_LocalInvocationIndex + 32u * gl_WorkGroupID.x; y[i*4u] = u.f[i % 5u] + u.v.y; y[i*4u+1u] = u.s[i % 3u].b + u.s[1].a.z; y[i*4u+2u] = float(u.w.y & 0xff) ; y[i*4u+3u] = float(gl_NumWorkGroups.x + gl_WorkGroupSize.y + gl_LocalInvocationID.y * 10u + gl_GlobalInvocationID.x); }
