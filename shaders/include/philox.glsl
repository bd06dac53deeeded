// Philox4x32-10, the same function as ops::random::philox.
#ifndef ONEPOOL_PHILOX_GLSL
#define ONEPOOL_PHILOX_GLSL

// The upper word of a product, from products of half words.
uint product_high(uint a, uint b)
{
    uint al = a & 0xffffu;
    uint ah = a >> 16;
    uint bl = b & 0xffffu;
    uint bh = b >> 16;
    uint middle = ah * bl + ((al * bl) >> 16);
    uint lower = al * bh + (middle & 0xffffu);
    return ah * bh + (middle >> 16) + (lower >> 16);
}

// The block of four words with a number below 2^32.
uvec4 philox(uvec2 key, uint counter)
{
    uvec4 c = uvec4(counter, 0u, 0u, 0u);
    for (int round_ = 0; round_ < 10; ++round_) {
        c = uvec4(product_high(0xCD9E8D57u, c.z) ^ c.y ^ key.x, 0xCD9E8D57u * c.z,
                  product_high(0xD2511F53u, c.x) ^ c.w ^ key.y, 0xD2511F53u * c.x);
        key += uvec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return c;
}

// Numbers of 0 to below 1.
vec4 philox_units(uvec2 key, uint counter)
{
    return vec4(philox(key, counter) >> 8) * (1.0 / 16777216.0);
}

#endif
