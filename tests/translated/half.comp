// Arithmetic in half precision: each operation is rounded.
#version 450
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) readonly buffer A { float16_t a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { float16_t b[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { f16vec4 y[]; };
layout(push_constant) uniform Params { uint n; } p;
shared float16_t kept[64];

void main()
{
    uint i = gl_GlobalInvocationID.x;
    kept[gl_LocalInvocationIndex] = i < p.n ? a[i] : float16_t(0.0);
    barrier();
    if (i >= p.n) {
        return;
    }
    float16_t x = kept[gl_LocalInvocationIndex];
    f16vec2 v = f16vec2(x, b[i]);
    precise f16vec2 w = v * v.yx + f16vec2(x - b[i], 0.1);
    y[i] = f16vec4(x + b[i], w, x < b[i] ? -x : b[i]);
}
