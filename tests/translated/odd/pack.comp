#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void main() { uint i = gl_GlobalInvocationID.x; vec4 v = vec4(float(x[i] & 255u) / 128.0 - 1.0, float(x[i+1u] & 255u) / 200.0, -0.3, 1.7);
 y[i*16u] = packUnorm4x8(v); y[i*16u+1u] = packSnorm4x8(v); y[i*16u+2u] = packUnorm2x16(v.xy); y[i*16u+3u] = packSnorm2x16(v.yx); y[i*16u+4u] = packHalf2x16(v.xw);
 vec4 a = unpackUnorm4x8(x[i]); vec4 b = unpackSnorm4x8(x[i]); vec2 c = unpackUnorm2x16(x[i]); vec2 d = unpackSnorm2x16(x[i]); vec2 e = unpackHalf2x16(x[i] & 0x3fff3fffu);
 y[i*16u+5u] = floatBitsToUint(a.x+a.w); y[i*16u+6u] = floatBitsToUint(b.y+b.z*2.0); y[i*16u+7u] = floatBitsToUint(c.x-c.y); y[i*16u+8u] = floatBitsToUint(d.x-d.y); y[i*16u+9u] = floatBitsToUint(e.x); y[i*16u+10u] = floatBitsToUint(e.y); y[i*16u+11u]=uint(floatBitsToInt(v.x)); y[i*16u+12u] = floatBitsToUint(uintBitsToFloat(0x3f800000u + (x[i] & 0xffffu))); }
