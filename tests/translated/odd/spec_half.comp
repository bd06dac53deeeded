#version 450
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 32) in;
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
layout(constant_id = 7) const float16_t K = 0.5hf;
void main() { uint i = gl_GlobalInvocationID.x; y[i] = floatBitsToUint(float(K * float16_t(i))); }
