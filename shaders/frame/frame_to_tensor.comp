// The pixels of a rectangle of a frame as a tensor. An invocation computes a pixel.
// variant: f32    T=f32 EXT_STORAGE8
// variant: f16    T=f16:uint16_t TO_f16 EXT_STORAGE8 EXT_STORAGE16
// variant: u8     T=u8 TO_u8 EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "half.glsl"
#include "frame.glsl"

LOCAL_SIZE(0, 64);

layout(set = 0, binding = 0, std430) readonly buffer Plane0 { uint8_t plane0[]; };
layout(set = 0, binding = 1, std430) readonly buffer Plane1 { uint8_t plane1[]; };
layout(set = 0, binding = 2, std430) readonly buffer Plane2 { uint8_t plane2[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T t[]; };

uint byte_at(uint memory, uint at)
{
    if (memory == 0u) {
        return uint(plane0[at]);
    }
    if (memory == 1u) {
        return uint(plane1[at]);
    }
    return uint(plane2[at]);
}

int load(uint memory, uint at)
{
    uint v = byte_at(memory, at);
    if (WIDE != 0u) {
        v = (v | (byte_at(memory, at + 1u) << 8)) >> 6;
    }
    return int(v);
}

// A sample with 14 bits in all, between the pixels of the taps.
int sampled(uint memory, uint base, uint stride, uint bytes, uint across, uint down, Tap tx, Tap ty)
{
    int bits = WIDE != 0u ? 10 : 8;
    uint row = base + ((p.y + ty.first) >> down) * stride;
    uint col = ((p.x + tx.first) >> across) * bytes;
    int first = load(memory, row + col);
    if (LINEAR == 0u) {
        return first << (14 - bits);
    }
    uint next_row = base + ((p.y + ty.second) >> down) * stride;
    uint next_col = ((p.x + tx.second) >> across) * bytes;
    int upper = between(first, load(memory, row + next_col), tx.weight, bits);
    int lower = between(load(memory, next_row + col), load(memory, next_row + next_col), tx.weight, bits);
    return between(upper, lower, ty.weight, WEIGHT_BITS);
}

// Stores a value of 8 bits with 21 places after the binary point.
void store(uint channel, uint pixel, int v)
{
    uint at = LAST != 0u ? pixel * CHANNELS + channel : channel * (p.tw * p.th) + pixel;
#ifdef TO_u8
    t[at] = T(uint(clamp((v + (1 << 20)) >> 21, 0, 255)));
#else
    // Of 24 bits, which a float holds.
    float value = float(clamp((v + 16) >> 5, 0, 255 << 16));
    precise float product = value * p.scale[channel];
    precise float number = product + p.offset[channel];
#ifdef TO_f16
    t[at] = uint16_t(half_bits(number));
#else
    t[at] = number;
#endif
#endif
}

void main()
{
    uint i = linear_id();
    if (i >= p.tw * p.th) {
        return;
    }
    uint row = i / p.tw;
    Tap tx = tap(LINEAR != 0u, i - row * p.tw, p.tw, p.w);
    Tap ty = tap(LINEAR != 0u, row, p.th, p.h);
    int c0 = sampled(0u, p.base[0], p.stride[0], STEP0, 0u, 0u, tx, ty);
    int c1 = 0;
    int c2 = 0;
    if (COMPONENTS > 1u) {
        c1 = sampled(MEMORY1, p.base[1], p.stride[1], STEP1, ACROSS, DOWN, tx, ty);
        c2 = sampled(MEMORY2, p.base[2], p.stride[2], STEP1, ACROSS, DOWN, tx, ty);
    }
    for (uint c = 0u; c < min(CHANNELS, 3u); ++c) {
        store(c, i, p.rows[3u * c] * c0 + p.rows[3u * c + 1u] * c1 + p.rows[3u * c + 2u] * c2 + p.bias[c]);
    }
    if (CHANNELS == 4u) {
        int alpha = 255 << 21;
        if (ALPHA != 0) {
            alpha = sampled(0u, uint(int(p.base[0]) + ALPHA), p.stride[0], STEP0, 0u, 0u, tx, ty) << 15;
        }
        store(3u, i, alpha);
    }
}
