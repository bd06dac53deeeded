#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void main() { uint i = gl_GlobalInvocationID.x; vec4 f = vec4(float(x[i]&63u), float(x[i+1u]&63u)*0.5, -1.5, 0.25); vec4 a = mod(f, 3.0) + mix(f, f.wzyx, bvec4(f.x > 3.0, true, false, f.y < 9.0)); vec4 b = step(f, vec4(2.0)) * clamp(f, 0.0, 5.0) + smoothstep(vec4(0.0), vec4(9.0), f); ivec4 e; vec4 m = frexp(f + 1.0, e); vec4 ip; vec4 fr = modf(f * 1.3, ip); vec4 l = ldexp(f, e); bvec4 n = isnan(f); bvec4 lt = greaterThanEqual(f, b); vec4 r = vec4(lt) * 2.0 - vec4(n); f /= 2.0; f -= a; f = -f; f++; 
 vec4 all_ = a + b * 3.0 + m + vec4(e) + ip + fr + l * 0.01 + r + f + vec4(dot(a.xyz, b.yzw)) + f * 2.0 ; y[i*4u] = floatBitsToUint(all_.x); y[i*4u+1u] = floatBitsToUint(all_.y); y[i*4u+2u] = floatBitsToUint(all_.z); y[i*4u+3u] = floatBitsToUint(all_.w); }
