#version 450
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
layout(set = 0, binding = 2, std430) buffer Z { int8_t a8[1024]; u16vec3 a16[256]; int64_t a64[256]; u8vec4 v8[64]; i64vec2 v64[32]; };
void main() { uint i = gl_GlobalInvocationID.x; uint v = x[i];
  int8_t a = int8_t(v); uint8_t b = uint8_t(v >> 8); int16_t c = int16_t(v); uint16_t d = uint16_t(v >> 3); int64_t e = int64_t(int(v)) * 1000003l; uint64_t f = uint64_t(v) << 20;
  a8[i] += a >> 1s; a16[i] = a16[i].zxy * d + u16vec3(b); a64[i] = (e / 7l) ^ (a64[i] / 1000l); if (i < 64u) v8[i].zx = u8vec2(b, uint8_t(a)); if (i < 32u) v64[i].yx = v64[i] - i64vec2(e, 1l);
  y[i*16u] = uint(a / int8_t(3)); y[i*16u+1u] = uint(b % uint8_t(7)) + uint(~b); y[i*16u+2u] = uint(c * c) + uint(int(c >> 2s)); y[i*16u+3u] = uint(d << 3us) + uint(-c);
  y[i*16u+4u] = uint(e >> 33) + uint(f >> 31); y[i*16u+5u] = uint(abs(e) % 97l); y[i*16u+6u] = uint(max(a, int8_t(-3))) + uint(clamp(c, -100s, 100s)); y[i*16u+7u] = uint(min(f, 12345678912345ul) >> 7);
  y[i*16u+8u] = uint(f > uint64_t(e)) + 2u * uint(e < 0l) + 4u * uint(a < int8_t(b)) + 8u * uint(b == uint8_t(a)); y[i*16u+9u] = floatBitsToUint(float(e)); y[i*16u+10u] = floatBitsToUint(float(f)) + floatBitsToUint(float(c)); y[i*16u+11u] = uint(int64_t(float(c) * 1000.5)) + uint(uint8_t(float(b)));
  y[i*16u+12u] = pack32(u8vec4(b, a, d, v)); y[i*16u+13u] = pack32(i16vec2(c, d)); u32vec2 h = unpack32(f); y[i*16u+14u] = h.x + h.y; y[i*16u+15u] = uint(pack64(u16vec4(d, b, c, a)) >> 13) + uint(unpack8(v).z) + uint(unpack16(v).y);
}
