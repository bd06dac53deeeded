//! Functions that the translated code calls, each written only where it is used.

/// A helper function, in the order in which they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Helper {
    /// `ushort h_bits(x)`: the bits of a binary16.
    HalfBits,
    /// `h_float(ushort)`: the binary16 of the bits.
    HalfFloat,
    /// `float h_round(float)`: the nearest binary16, of devices without it.
    HalfRound,
    /// Signed division of 32 bits.
    IntDiv,
    /// Signed remainder of 32 bits, of the dividend's sign.
    IntRem,
    /// Signed remainder of 32 bits, of the divisor's sign.
    IntMod,
    /// Signed division of 64 bits.
    LongDiv,
    /// Signed remainder of 64 bits, of the dividend's sign.
    LongRem,
    /// Signed remainder of 64 bits, of the divisor's sign.
    LongMod,
    BitReverse,
    /// `BitFieldInsert`.
    BitInsert,
    /// `BitFieldUExtract`.
    BitsUnsigned,
    /// `BitFieldSExtract`.
    BitsSigned,
    /// Adds to a float in global memory.
    AddGlobal,
    /// Adds to a float in workgroup memory.
    AddLocal,
    /// The smaller float, in global memory.
    MinGlobal,
    /// The smaller float, in workgroup memory.
    MinLocal,
    /// The larger float, in global memory.
    MaxGlobal,
    /// The larger float, in workgroup memory.
    MaxLocal,
    /// `int line_at(int4, int2)`: the texel of an `image1d_buffer_t` that a place is, or the edge's nearest to it.
    LineAt,
    /// `bool line_has(int4, int2)`: whether a place is in the image.
    LineHas,
    /// `bool plane_has(int2, int2)`: whether a place is in an image of this size.
    PlaneHas,
    /// The sampler for texels by their numbers.
    EdgeSampler,
}

/// An update of a float by compare and swap; returns the old value.
macro_rules! float_atomic {
    ($name:literal, $space:literal, $value:literal) => {
        concat!(
            "static float ",
            $name,
            "(volatile ",
            $space,
            " uint* p, float x)\n{\n",
            "    uint old = atomic_or(p, 0u);\n    for (;;) {\n",
            "        uint seen = atomic_cmpxchg(p, old, as_uint(",
            $value,
            "));\n",
            "        if (seen == old) { return as_float(old); }\n        old = seen;\n    }\n}\n"
        )
    };
}

impl Helper {
    /// Its definition.
    pub(super) fn text(self, fp16: bool) -> &'static str {
        match self {
            Self::HalfBits if fp16 => "static ushort h_bits(half x) { return as_ushort(x); }\n",
            Self::HalfBits => {
                "static ushort h_bits(float x) { ushort r; vstore_half_rte(x, 0, (half*)&r); return r; }\n"
            }
            Self::HalfFloat if fp16 => "static half h_float(ushort x) { return as_half(x); }\n",
            Self::HalfFloat => "static float h_float(ushort x) { return vload_half(0, (const half*)&x); }\n",
            Self::HalfRound => "static float h_round(float x) { return h_float(h_bits(x)); }\n",
            Self::IntDiv => {
                "static int i_div(int a, int b) { return b == -1 ? as_int(0u - as_uint(a)) : a / (b == 0 ? 1 : b); }\n"
            }
            Self::IntRem => "static int i_rem(int a, int b) { return b == -1 || b == 0 ? 0 : a % b; }\n",
            Self::IntMod => {
                "static int i_mod(int a, int b)\n{\n    int r = b == -1 || b == 0 ? 0 : a % b;\n    return r != 0 && (r ^ b) < 0 ? r + b : r;\n}\n"
            }
            Self::LongDiv => {
                "static long l_div(long a, long b) { return b == -1 ? as_long(0ul - as_ulong(a)) : a / (b == 0 ? 1 : b); }\n"
            }
            Self::LongRem => "static long l_rem(long a, long b) { return b == -1 || b == 0 ? 0 : a % b; }\n",
            Self::LongMod => {
                "static long l_mod(long a, long b)\n{\n    long r = b == -1 || b == 0 ? 0 : a % b;\n    return r != 0 && (r ^ b) < 0 ? r + b : r;\n}\n"
            }
            Self::BitReverse => {
                "static uint bit_reverse_(uint x)\n{\n    x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);\n    x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);\n    x = ((x >> 4) & 0x0f0f0f0fu) | ((x & 0x0f0f0f0fu) << 4);\n    x = ((x >> 8) & 0x00ff00ffu) | ((x & 0x00ff00ffu) << 8);\n    return (x >> 16) | (x << 16);\n}\n"
            }
            Self::BitInsert => {
                "static uint bits_insert(uint base, uint x, uint offset, uint count)\n{\n    uint mask = (count < 32u ? (1u << count) - 1u : ~0u) << (offset & 31u);\n    return count == 0u ? base : (base & ~mask) | ((x << (offset & 31u)) & mask);\n}\n"
            }
            Self::BitsUnsigned => {
                "static uint bits_u(uint x, uint offset, uint count)\n{\n    return count == 0u ? 0u : (x >> (offset & 31u)) & (count < 32u ? (1u << count) - 1u : ~0u);\n}\n"
            }
            Self::BitsSigned => {
                "static uint bits_s(uint x, uint offset, uint count)\n{\n    return count == 0u ? 0u : as_uint(as_int(x << ((32u - offset - count) & 31u)) >> ((32u - count) & 31u));\n}\n"
            }
            Self::AddGlobal => float_atomic!("add_global", "__global", "as_float(old) + x"),
            Self::AddLocal => float_atomic!("add_local", "__local", "as_float(old) + x"),
            Self::MinGlobal => float_atomic!("min_global", "__global", "fmin(as_float(old), x)"),
            Self::MinLocal => float_atomic!("min_local", "__local", "fmin(as_float(old), x)"),
            Self::MaxGlobal => float_atomic!("max_global", "__global", "fmax(as_float(old), x)"),
            Self::LineAt => {
                "static int line_at(int4 image, int2 at)\n{\n    at = clamp(at, (int2)(0, 0), image.yz - 1);\n    return image.x + at.y * image.w + at.x;\n}\n"
            }
            Self::LineHas => {
                "static bool line_has(int4 image, int2 at)\n{\n    return at.x >= 0 && at.x < image.y && at.y >= 0 && at.y < image.z;\n}\n"
            }
            Self::PlaneHas => {
                "static bool plane_has(int2 size, int2 at)\n{\n    return at.x >= 0 && at.x < size.x && at.y >= 0 && at.y < size.y;\n}\n"
            }
            Self::EdgeSampler => {
                "__constant sampler_t edge_ = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;\n"
            }
            Self::MaxLocal => float_atomic!("max_local", "__local", "fmax(as_float(old), x)"),
        }
    }

    /// Those that it calls.
    pub(super) fn calls(self) -> &'static [Helper] {
        match self {
            Self::HalfRound => &[Self::HalfBits, Self::HalfFloat],
            _ => &[],
        }
    }
}
