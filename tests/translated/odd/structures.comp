#version 450
layout(local_size_x = 32) in;
struct Q { vec3 p; uint k; vec2 t[3]; }; struct E { Q q[2]; uint z; };
layout(set = 0, binding = 0, std430) readonly buffer X { E x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint len; E y[]; };
E twist(E e) { Q t = e.q[0]; e.q[0] = e.q[1]; e.q[1] = t; e.z += e.q[0].k; return e; }
void main() { uint i = gl_GlobalInvocationID.x; if (i >= y.length()) return; E e = x[i]; e = twist(e); y[i] = e; y[i].q[i & 1u].t[i % 3u].y = 3.5; y[i].q[0].p.zx = y[i].q[1].p.xy; if (i == 0u) len = y.length() + x.length(); }
