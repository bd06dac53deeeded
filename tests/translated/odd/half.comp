#version 450
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { float16_t y[]; };
layout(set = 0, binding = 2, std430) buffer Z { f16vec4 z[256]; f16vec3 w[256]; };
void main() { uint i = gl_GlobalInvocationID.x; float16_t a = float16_t(float(x[i] & 1023u) / 16.0); f16vec3 v = f16vec3(a, a * 2.0hf, 1.0hf); y[i*16u] = sqrt(a); y[i*16u+1u] = a / 3.0hf; y[i*16u+2u] = float16_t(int(a)); y[i*16u+3u] = max(a, 5.0hf) + abs(-a); y[i*16u+4u] = floor(a) - fract(a); y[i*16u+5u] = -a; y[i*16u+6u] = a > 20.0hf ? a : float16_t(1); y[i*16u+7u] = clamp(a, 1.0hf, 9.0hf); y[i*16u+8u] = v.z + v.x; uint16_t h = float16BitsToUint16(a); y[i*16u+9u] = uint16BitsToFloat16(h ^ 1us); z[i] = f16vec4(v, a).wzyx; w[i] = v.zzx; y[i*16u+10u] = dot(v, v.yzx); y[i*16u+11u] = mix(a, 2.0hf, 0.25hf); y[i*16u+12u] = unpackFloat2x16(x[i] & 0x3fff3fffu).y; y[i*16u+13u] = float16_t(i) ; y[i*16u+14u] = mod(a, 3.0hf); y[i*16u+15u]= fma(a, a, 1.0hf); }
