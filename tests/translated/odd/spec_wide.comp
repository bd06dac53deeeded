#version 450
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
layout(constant_id = 0) const int64_t A = -3l; layout(constant_id = 1) const uint64_t B = 0x123456789abcdefUL; layout(constant_id = 2) const double C = 1.5lf; layout(constant_id = 3) const uint16_t D = 65535us; layout(constant_id = 4) const int16_t E = -5s;
layout(constant_id = 5) const int8_t F = int8_t(-5); layout(constant_id = 6) const uint8_t G = uint8_t(200);
const int64_t H = A * 5l - 2l; const uint64_t I = B >> 4;
void main() { uint i = gl_GlobalInvocationID.x; uint64_t h = uint64_t(H) + i, k = I + i; y[i*8u] = uint(h) + uint(k >> 32) + uint(k); y[i*8u+1u] = floatBitsToUint(float((C + double(i)) * 3.0lf)); uint16_t d = D + uint16_t(i); int16_t e = E + int16_t(i); int8_t f = F + int8_t(i); uint8_t g = G + uint8_t(i); y[i*8u+2u] = uint(d) + uint(int(e)); y[i*8u+3u] = uint(int(f)) + uint(g); }
