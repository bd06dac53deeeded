// A cache of keys or values as codes: decodes past codes, or encodes numbers and writes the decoded ones back.
// variant: f32  T=f32 EXT_STORAGE8
// variant: f16  T=f16 EXT_STORAGE16 EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "quotient.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, BITS, 8u);       // 8, or 4 of which two are in a byte, the first in the low half
SPEC(2, uint, CHANNELS, 0u);   // whether every channel of every head has a scale
SPEC(3, uint, ENCODE, 0u);

layout(set = 0, binding = 0, std430) readonly buffer Past { uint8_t past[]; };
layout(set = 0, binding = 1, std430) readonly buffer Scales { float scales[]; };
layout(set = 0, binding = 2, std430) buffer Cache { T cache[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Codes { uint8_t codes[]; };

layout(push_constant) uniform Params
{
    uint n;               // bytes of the codes of the whole cache
    uint heads, rows;
    uint bytes;           // of the codes of one row
    uint past_rows;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    const uint PER = 8u / BITS;
    const int HALF = 1 << (BITS - 1u);
    uint byte = i % p.bytes;
    uint row = i / p.bytes % p.rows;
    uint outer = i / p.bytes / p.rows;
    uint head = outer % p.heads;
    uint code = 0u;
    if (ENCODE == 0u && row < p.past_rows) {
        code = uint(past[(outer * p.past_rows + row) * p.bytes + byte]);
    }
    uint made = 0u;
    for (uint part = 0u; part < PER; ++part) {
        uint channel = byte * PER + part;
        uint at = i * PER + part;
        float scale = scales[CHANNELS != 0u ? head * p.bytes * PER + channel : 0u];
        int whole = 0;
        if (ENCODE != 0u) {
            float q = quotient(float(cache[at]), scale);
            bool number = (floatBitsToUint(q) & 0x7fffffffu) <= 0x7f800000u;
            whole = number ? int(clamp(roundEven(q), float(-HALF), float(HALF - 1))) : 0;
            made |= (BITS == 8u ? uint(whole) & 0xffu : uint(whole + HALF)) << (part * BITS);
        } else if (row < p.past_rows) {
            whole = BITS == 8u ? int(code << 24) >> 24 : int((code >> (part * BITS)) & 15u) - HALF;
        }
        cache[at] = T(float(whole) * scale);
    }
    if (ENCODE != 0u) {
        codes[i] = uint8_t(made);
    }
}
