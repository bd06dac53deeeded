// Integer arithmetic of every width, and functions of bits.
#version 450
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 16) in;
layout(set = 0, binding = 0, std430) readonly buffer X { int x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { int y[]; };
layout(set = 0, binding = 2, std430) buffer Bytes { int8_t bytes[]; };
layout(set = 0, binding = 3, std430) buffer Shorts { uint16_t shorts[]; };
layout(push_constant) uniform Params { uint n; } p;

int floor_mod(int a, int b)
{
    int r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

void main()
{
    uint i = gl_GlobalInvocationID.x;
    if (i >= p.n) {
        return;
    }
    int a = x[2u * i];
    int b = x[2u * i + 1u];
    uint ua = uint(a);
    uint ub = uint(b);
    uint high;
    uint low;
    umulExtended(ua, ub, high, low);
    int shigh;
    int slow;
    imulExtended(a, b, shigh, slow);
    uint carry;
    uint total = uaddCarry(ua, ub, carry);
    uint borrow;
    uint difference = usubBorrow(ua, ub, borrow);
    int results[24] = int[24](
        a + b, a - b, a * b, b != 0 && b != -1 ? a / b : 0, int(ub != 0u ? ua / ub : 0u), floor_mod(a, b == 0 || b == -1 ? 1 : b),
        int(high), int(low), shigh, slow, int(total), int(carry),
        int(difference), int(borrow), a >> (ub & 31u), int(ua >> (ub & 31u)), findMSB(a), findMSB(ua),
        findLSB(a), bitCount(a), bitfieldReverse(a), bitfieldExtract(a, 5, 9), int(bitfieldExtract(ua, 3, 17)),
        bitfieldInsert(a, b, 7, 12));
    for (uint k = 0u; k < 24u; k++) {
        y[i * 32u + k] = results[k];
    }
    int64_t wide = int64_t(a) * int64_t(b) - int64_t(ua);
    y[i * 32u + 24u] = int(wide);
    y[i * 32u + 25u] = int(wide >> 32);
    bytes[i] = int8_t(bytes[i] + int8_t(a)) * int8_t(b);
    shorts[i] = uint16_t(shorts[i] - uint16_t(ua)) >> 3s;
    y[i * 32u + 26u] = sign(a) + abs(b);
    y[i * 32u + 27u] = clamp(a, -100, 1000) + max(a, b) + int(min(ua, ub));
    bvec4 less = lessThan(ivec4(a, b, -a, 5), ivec4(b, a, b, a));
    y[i * 32u + 28u] = int(less.x) + 2 * int(less.y) + 4 * int(any(less)) + 8 * int(all(less)) + 16 * int(not(less).w);
    uvec3 triple = uvec3(ua, ub, ua ^ ub).zxy;
    triple.y += 3u;
    triple[i % 3u] *= 5u;
    y[i * 32u + 29u] = int(triple.x + 3u * triple.y + 7u * triple.z);
    y[i * 32u + 30u] = ivec4(a, b, a - b, a + b)[ub & 3u];
    y[i * 32u + 31u] = mix(ivec2(a, b), ivec2(b, a), bvec2((ua & 1u) != 0u, (ub & 1u) != 0u)).x;
}
