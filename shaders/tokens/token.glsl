// Logits as their settings change them. Line `sequence` of `settings` says which line of logits is wanted.
#ifndef ONEPOOL_TOKEN_GLSL
#define ONEPOOL_TOKEN_GLSL

#define LANES 256u
#define PART 4096u          // rust: logits that a work-group does
#define CANDIDATES 2048u    // rust: candidates that there is room for
#define HEAD 4u             // rust: words of a line of results before its parts
#define PART_WORDS 4u       // rust: words of a part: its largest logit, that one's token, sum of weights, whether one is NaN
#define SETTINGS 8u         // rust: words of a line of settings
#define GRAINS 64u          // rust: largest logits of a part that are kept
#define MOST_PARTS 128u     // rust: parts that a line may have
#define NO_LINE 0xffffffffu // rust: stands for a line where none is wanted

// Words of a line of settings.
#define AT_LINE 0u          // rust: the line of logits
#define AT_FLAGS 1u         // rust: the sum of flags
#define AT_TEMPERATURE 2u   // rust: what divides logits, above 0, as a float
#define AT_PENALTY 3u       // rust: the repetition penalty, as a float: factor of logits below 0
#define AT_COUNT 4u         // rust: candidates that are wanted at least; 0 where the distance decides
#define AT_DISTANCE 5u      // rust: how far below the largest logit candidates are, as a float; below 0 there are none
#define AT_RECIPROCAL 6u    // rust: 1 over the penalty, as a float: factor of logits above 0

#define IS_PENALIZED 0x1u   // rust: flag: tokens that were marked as seen are less likely
#define IS_HELD 0x2u        // rust: flag: tokens that are not marked as allowed are impossible

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Settings { uint settings[]; };
layout(set = 0, binding = 2, std430) readonly buffer Marks { uint marks[]; };
layout(set = 0, binding = 3, std430) buffer Results { uint results[]; };
layout(set = 0, binding = 4, std430) buffer Grains { float grains[]; };

layout(push_constant) uniform Params
{
    uint groups;
    uint parts;         // of each line
    uint vocabulary;    // logits of each line
    uint lines;         // of logits
    uint words;         // of a row of marks
    uint stride;        // words of a line of results
} p;

const float NEVER = uintBitsToFloat(0xff800000u);

uint setting(uint sequence, uint at)
{
    return settings[sequence * SETTINGS + at];
}

bool is_marked(uint row, uint token)
{
    return (marks[row * p.words + token / 32u] >> (token % 32u) & 1u) != 0u;
}

// Factors of the logits of seen tokens: of those above 0, and of the others.
vec2 penalties_of(uint sequence)
{
    return uintBitsToFloat(uvec2(setting(sequence, AT_RECIPROCAL), setting(sequence, AT_PENALTY)));
}

float logit(uint sequence, uint line, uint flags, vec2 penalties, uint token)
{
    float v = float(x[line * p.vocabulary + token]);
    if ((flags & IS_PENALIZED) != 0u && is_marked(2u * sequence, token)) {
        v *= v > 0.0 ? penalties.x : penalties.y;
    }
    if ((flags & IS_HELD) != 0u && !is_marked(2u * sequence + 1u, token)) {
        v = NEVER;
    }
    return v;
}

// Ascending with the float.
uint key(float v)
{
    uint bits = floatBitsToUint(v);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

#endif
