// Philox4x32-10; ops::random::philox computes the same function with the same constants.
#ifndef ONEPOOL_PHILOX_GLSL
#define ONEPOOL_PHILOX_GLSL

#define PHILOX_ROUNDS 10  // rust ROUNDS: rounds of a block
#define PHILOX_FACTOR_X 0xD2511F53u  // rust FACTOR_X: factor of the first word
#define PHILOX_FACTOR_Z 0xCD9E8D57u  // rust FACTOR_Z: factor of the third word
#define PHILOX_KEY_X 0x9E3779B9u  // rust KEY_X: step of the first word of the key
#define PHILOX_KEY_Y 0xBB67AE85u  // rust KEY_Y: step of the second word of the key

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
    for (int round_ = 0; round_ < PHILOX_ROUNDS; ++round_) {
        c = uvec4(product_high(PHILOX_FACTOR_Z, c.z) ^ c.y ^ key.x, PHILOX_FACTOR_Z * c.z,
                  product_high(PHILOX_FACTOR_X, c.x) ^ c.w ^ key.y, PHILOX_FACTOR_X * c.x);
        key += uvec2(PHILOX_KEY_X, PHILOX_KEY_Y);
    }
    return c;
}

// Numbers of 0 to below 1.
vec4 philox_units(uvec2 key, uint counter)
{
    return vec4(philox(key, counter) >> 8) * (1.0 / 16777216.0);
}

#endif
