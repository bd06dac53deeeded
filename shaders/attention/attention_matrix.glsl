// What kernels of attention by cooperative matrices have in common. Declare OWN_LINE, the words of a line of a subgroup in
// `tile`, before.
#ifndef ONEPOOL_ATTENTION_MATRIX_GLSL
#define ONEPOOL_ATTENTION_MATRIX_GLSL

const float LOG2_E = 1.4426950408889634;
// Up to so many powers of two may a weight be above those of the largest score before: float16 ends at 16.
const float SLACK = 11.0;

// A matrix of which row `r` is the `value` of its invocations; `own` is the first line of the subgroup.
SUMS rows_of(uint own, uint r, uint share, uint shares, float value)
{
    for (uint n = share; n < 4u; n += shares) {
        tile[own + r * OWN_LINE + n] = floatBitsToUint(vec4(value));
    }
    wait_for_sums(false);
    SUMS rows;
    coopMatLoad(rows, tile, own, OWN_LINE, ROW_MAJOR);
    wait_for_sums(false);
    return rows;
}

// Four scores of query `i` and keys from `key` on, with their masks, of the matrix whose row begins at `line`: its group `w`.
vec4 scores_at(uint line, uint w, uint i, uint key, bool unmasked)
{
    if (w >= 4u) {
        return vec4(HIDDEN);
    }
    vec4 s = uintBitsToFloat(tile[line + w]) * p.scale;
    [[unroll]] for (uint e = 0u; e < 4u; ++e) {
        s[e] = capped(s[e]);
        if (!unmasked) {
            s[e] = masked(s[e], i < p.q_len ? bias(i, key + 4u * w + e) : HIDDEN);
        }
    }
    return s;
}

#endif
