// Rows of a cache of keys or values as words: codes of 4 or 8 bits times scales, or binary16. The codes of a row come first,
// in whole words; with BLOCK_SCALES a binary16 scale of each CODE_BLOCK of them comes after, two in a word.
#ifndef ONEPOOL_CODED_ROWS_GLSL
#define ONEPOOL_CODED_ROWS_GLSL

SPEC(18, uint, CODE_BITS, 8u);    // 4, 8, or 16 for binary16 without scales
SPEC(19, uint, BLOCK_SCALES, 0u);  // whether each block of a row has a scale in it
// Whether each channel of keys and of values has a scale, where blocks have none.
SPEC(20, uint, K_CHANNELS, 0u);
SPEC(21, uint, V_CHANNELS, 0u);

const uint CODE_BLOCK = 32u;  // rust: elements of a block of a row

// Words of the codes of `size` elements.
uint code_words(uint size)
{
    return (size * CODE_BITS + 31u) / 32u;
}

// The scale of block `block` of a pair in a word.
float block_scale(uint pair, uint block)
{
    vec2 both = unpackHalf2x16(pair);
    return block % 2u == 0u ? both.x : both.y;
}

// float NAME(at, i, first): element `i` of the row whose first word is `at`, of vectors of SIZE elements; `first` is the first
// channel of its head.
#define CODED_ELEMENT(NAME, CODES, SCALES_OF, CHANNELS, SIZE)                                              \
    float NAME(uint at, uint i, uint first)                                                                \
    {                                                                                                      \
        uint word = CODES[at + i * CODE_BITS / 32u];                                                       \
        if (CODE_BITS == 16u) {                                                                            \
            vec2 both = unpackHalf2x16(word);                                                              \
            return i % 2u == 0u ? both.x : both.y;                                                         \
        }                                                                                                  \
        uint shift = i * CODE_BITS % 32u;                                                                  \
        float whole = CODE_BITS == 8u ? float(bitfieldExtract(int(word), int(shift), 8))                   \
                                      : float((word >> shift) & 15u) - 8.0;                                \
        if (BLOCK_SCALES != 0u) {                                                                          \
            uint block = i / CODE_BLOCK;                                                                   \
            return whole * block_scale(CODES[at + code_words(SIZE) + block / 2u], block);                  \
        }                                                                                                  \
        return whole * SCALES_OF[CHANNELS != 0u ? first + i : 0u];                                         \
    }

// vec4 NAME(at, i, first): the same of group `i` of four elements.
#define CODED_GROUP(NAME, CODES, SCALES_OF, CHANNELS, SIZE)                                                \
    vec4 NAME(uint at, uint i, uint first)                                                                 \
    {                                                                                                      \
        uint word = CODES[at + i * CODE_BITS / 8u];                                                        \
        if (CODE_BITS == 16u) {                                                                            \
            return vec4(unpackHalf2x16(word), unpackHalf2x16(CODES[at + 2u * i + 1u]));                    \
        }                                                                                                  \
        vec4 whole;                                                                                        \
        if (CODE_BITS == 8u) {                                                                             \
            int codes = int(word);                                                                         \
            whole = vec4(float(bitfieldExtract(codes, 0, 8)), float(bitfieldExtract(codes, 8, 8)),         \
                         float(bitfieldExtract(codes, 16, 8)), float(codes >> 24));                        \
        } else {                                                                                           \
            uint codes = word >> (i % 2u * 16u);                                                           \
            whole = vec4(float(codes & 15u), float((codes >> 4) & 15u), float((codes >> 8) & 15u),         \
                         float((codes >> 12) & 15u)) - 8.0;                                                \
        }                                                                                                  \
        if (BLOCK_SCALES != 0u) {                                                                          \
            uint block = 4u * i / CODE_BLOCK;                                                              \
            return whole * block_scale(CODES[at + code_words(SIZE) + block / 2u], block);                  \
        }                                                                                                  \
        if (CHANNELS != 0u) {                                                                              \
            uint from = first + 4u * i;                                                                    \
            return whole * vec4(SCALES_OF[from], SCALES_OF[from + 1u], SCALES_OF[from + 2u], SCALES_OF[from + 3u]); \
        }                                                                                                  \
        return whole * SCALES_OF[0];                                                                       \
    }

#endif
