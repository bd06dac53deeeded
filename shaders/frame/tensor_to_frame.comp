// A tensor as the pixels of a rectangle of a frame; other bytes stay. An invocation computes the pixels of a sample of
// chroma.
// variant: f32    T=f32 EXT_STORAGE8
// variant: f16    T=f16:uint16_t FROM_f16 EXT_STORAGE8 EXT_STORAGE16
// variant: u8     T=u8 FROM_u8 EXT_STORAGE8
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "frame.glsl"

LOCAL_SIZE(0, 64);
SPEC(13, uint, RED, 0u);         // the channels of red, green and blue
SPEC(14, uint, GREEN, 1u);
SPEC(15, uint, BLUE, 2u);

layout(set = 0, binding = 0, std430) readonly buffer X { T t[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Plane0 { uint8_t plane0[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Plane1 { uint8_t plane1[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Plane2 { uint8_t plane2[]; };

void write_byte(uint memory, uint at, uint v)
{
    if (memory == 0u) {
        plane0[at] = uint8_t(v & 0xffu);
    } else if (memory == 1u) {
        plane1[at] = uint8_t(v & 0xffu);
    } else {
        plane2[at] = uint8_t(v & 0xffu);
    }
}

// A number of the tensor as a value of 8 bits with 6 places after the binary point.
int load(uint channel, uint x, uint y)
{
    uint pixel = y * p.tw + x;
    uint at = LAST != 0u ? pixel * CHANNELS + channel : channel * (p.tw * p.th) + pixel;
#ifdef FROM_u8
    return int(uint(t[at])) << 6;
#else
#ifdef FROM_f16
    float number = unpackHalf2x16(uint(t[at])).x;
#else
    float number = t[at];
#endif
    precise float product = number * p.scale[channel];
    precise float value = product + p.offset[channel];
    // What is no number is black.
    value = value > 0.0 ? (value < 255.0 ? value : 255.0) : 0.0;
    precise float rounded = value * 64.0 + 0.5;
    return int(rounded);
#endif
}

int sampled(uint channel, Tap tx, Tap ty)
{
    int first = load(channel, tx.first, ty.first);
    if (LINEAR == 0u) {
        return first;
    }
    int upper = between(first, load(channel, tx.second, ty.first), tx.weight, WEIGHT_BITS);
    int lower = between(
        load(channel, tx.first, ty.second), load(channel, tx.second, ty.second), tx.weight, WEIGHT_BITS);
    return between(upper, lower, ty.weight, WEIGHT_BITS);
}

void write_component(uint c, uint memory, uint at, int red, int green, int blue)
{
    int v = p.rows[3u * c] * red + p.rows[3u * c + 1u] * green + p.rows[3u * c + 2u] * blue + p.bias[c];
    if (WIDE != 0u) {
        uint wide = uint(clamp(v >> 19, 0, 1023)) << 6;
        write_byte(memory, at, wide);
        write_byte(memory, at + 1u, wide >> 8);
    } else {
        write_byte(memory, at, uint(clamp(v >> 21, 0, 255)));
    }
}

void main()
{
    uint i = linear_id();
    // The last samples of chroma of an odd side are those of fewer pixels.
    uint columns = (p.w + (1u << ACROSS) - 1u) >> ACROSS;
    uint lines = (p.h + (1u << DOWN) - 1u) >> DOWN;
    if (i >= columns * lines) {
        return;
    }
    uint y = (i / columns) << DOWN;
    uint x = (i - (i / columns) * columns) << ACROSS;
    int red = 0;
    int green = 0;
    int blue = 0;
    for (uint dy = 0u; dy < 1u << DOWN; ++dy) {
        uint own_y = min(y + dy, p.h - 1u);
        Tap ty = tap(LINEAR != 0u, own_y, p.h, p.th);
        for (uint dx = 0u; dx < 1u << ACROSS; ++dx) {
            uint own_x = min(x + dx, p.w - 1u);
            Tap tx = tap(LINEAR != 0u, own_x, p.w, p.tw);
            int r = sampled(RED, tx, ty);
            int g = CHANNELS > 1u ? sampled(GREEN, tx, ty) : r;
            int b = CHANNELS > 1u ? sampled(BLUE, tx, ty) : r;
            uint at = p.base[0] + (p.y + own_y) * p.stride[0] + (p.x + own_x) * STEP0;
            write_component(0u, 0u, at, r, g, b);
            if (ALPHA != 0) {
                uint alpha = 255u;
                if (CHANNELS == 4u) {
                    alpha = uint(sampled(3u, tx, ty) + 32) >> 6;
                }
                write_byte(0u, uint(int(at) + ALPHA), alpha);
            }
            red += r;
            green += g;
            blue += b;
        }
    }
    if (COMPONENTS > 1u) {
        uint shift = ACROSS + DOWN;
        int half_unit = (1 << shift) >> 1;
        red = (red + half_unit) >> shift;
        green = (green + half_unit) >> shift;
        blue = (blue + half_unit) >> shift;
        uint row = (p.y + y) >> DOWN;
        uint column = ((p.x + x) >> ACROSS) * STEP1;
        write_component(1u, MEMORY1, p.base[1] + row * p.stride[1] + column, red, green, blue);
        write_component(2u, MEMORY2, p.base[2] + row * p.stride[2] + column, red, green, blue);
    }
}
