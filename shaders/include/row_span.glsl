// Neighbouring elements of a row, read as whole texels. Include it after the parameters, of which `last` is the last texel; with
// SHIFT, where elements begin in a texel (4: not known), and PX, KW, SX and DX; X_TEXEL reads a texel.
#ifndef ONEPOOL_ROW_SPAN_GLSL
#define ONEPOOL_ROW_SPAN_GLSL

// Input elements that PX output elements read.
const uint SPAN = (PX - 1u) * SX + (KW - 1u) * DX + 1u;
const uint TEXEL_COUNT = (SPAN + (SHIFT == 4u ? 3u : SHIFT) + 3u) / 4u;

float values[4u * TEXEL_COUNT];

#ifdef X_TEXEL
// Reads the SPAN elements from `e` on.
void load_span(int e)
{
    int base = e >> 2;
    [[unroll]] for (uint i = 0u; i < TEXEL_COUNT; ++i) {
        vec4 t = X_TEXEL(clamp(base + int(i), 0, p.last));
        values[4u * i] = t.x;
        values[4u * i + 1u] = t.y;
        values[4u * i + 2u] = t.z;
        values[4u * i + 3u] = t.w;
    }
    if (SHIFT == 4u) {
        // By one, then by two.
        bool one = (e & 1) != 0;
        bool two = (e & 2) != 0;
        [[unroll]] for (uint i = 0u; i < SPAN + 2u; ++i) {
            values[i] = one ? values[i + 1u] : values[i];
        }
        [[unroll]] for (uint i = 0u; i < SPAN; ++i) {
            values[i] = two ? values[i + 2u] : values[i];
        }
    } else {
        [[unroll]] for (uint i = 0u; i < SPAN; ++i) {
            values[i] = values[i + SHIFT];
        }
    }
}
#endif

#endif
