// Few rows times a matrix that is read four elements at a time, with EIGHT eight: sizes along its contiguous axis and all
// its strides are multiples of that. With columns of B contiguous a team of 32 invocations sums one column, else an
// invocation sums a part of four columns.
// With GATED the result is a function of that product times another of the same A with a second matrix as B is.
// Rows may be normalized before the product: beside.glsl.
// variant: f32                T=f32 VEC=vec4
// variant: f16                T=f16 VEC=f16vec4 EXT_STORAGE16
// variant: f32_columns        T=f32 VEC=vec4 COLUMNS
// variant: f16_columns        T=f16 VEC=f16vec4 EXT_STORAGE16 COLUMNS
// variant: f16_columns8       T=f16 VEC=f16vec4 EXT_STORAGE16 COLUMNS EIGHT
// variant: f32_gated          T=f32 VEC=vec4 GATED
// variant: f16_gated          T=f16 VEC=f16vec4 EXT_STORAGE16 GATED
// variant: f32_columns_gated  T=f32 VEC=vec4 COLUMNS GATED
// variant: f16_columns_gated  T=f16 VEC=f16vec4 EXT_STORAGE16 COLUMNS GATED
// variant: f16_columns8_gated T=f16 VEC=f16vec4 EXT_STORAGE16 COLUMNS EIGHT GATED
#version 450
#extension GL_EXT_control_flow_attributes : require
#include "types.glsl"
#include "spec.glsl"
#include "activation.glsl"
#include "product.glsl"
#include "beside.glsl"

LOCAL_SIZE(0, 256);
SPEC(2, uint, BIASED, 0u);
SPEC(3, uint, ACTIVATION, 0u);
SPEC(4, uint, ACROSS, 8u);     // invocations side by side along rows of B
SPEC(5, uint, HELD, 4u);       // rows that an invocation holds sums of: at least m

#ifdef EIGHT
#define STORED uvec4
#define WEIGHTS uvec4
const uint EACH = 8u;
#else
#define STORED VEC
#define WEIGHTS vec4
const uint EACH = 4u;
#endif

#ifdef COLUMNS
layout(set = 0, binding = 0, std430) readonly buffer A { VEC a[]; };
#else
layout(set = 0, binding = 0, std430) readonly buffer A { T a[]; };
#endif
layout(set = 0, binding = 1, std430) readonly buffer B { STORED b[]; };
layout(set = 0, binding = 2, std430) readonly buffer C { T c[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };
#ifdef GATED
layout(set = 0, binding = 4, std430) readonly buffer OtherB { STORED other_b[]; };
#define GAIN_AT 5
const uint MATRICES = 2u;
#else
#define GAIN_AT 4
const uint MATRICES = 1u;
#endif
#ifdef COLUMNS
layout(set = 0, binding = GAIN_AT, std430) readonly buffer Gain { VEC gain[]; };
#else
layout(set = 0, binding = GAIN_AT, std430) readonly buffer Gain { T gain[]; };
#endif

const uint ROWS = 4u;     // rust: the most rows
const uint TEAM = 32u;
const uint COLS = 8u;     // rust: columns of a work-group of 256, where columns of B are contiguous

const uint MOST_LANES = 1024u;  // rust: the most invocations of a work-group

// Of teams of columns there are 256, and room for more would leave fewer work-groups to a processor.
#ifdef COLUMNS
shared vec4 sums[TEAM * COLS];
#else
shared vec4 sums[MOST_LANES];
#endif

void store(uint batch, uint row, uint col, float sum, float other)
{
    if (col < p.n) {
        float v = p.alpha * sum;
        if (BIASED != 0u) {
            v += p.beta * float(c[row * p.c_row + col * p.c_col]);
        }
        v = activate(v, ACTIVATION, p.act_a, p.act_b);
        y[p.y_first + (batch * p.m + row) * p.n + col] = T(MATRICES > 1u ? v * other : v);
    }
}

// The sum over `parts` neighbours `apart` invocations from each other, in the first of them.
vec4 total(vec4 own, uint part, uint parts, uint apart)
{
    uint t = gl_LocalInvocationIndex;
    sums[t] = own;
    barrier();
    // Four to one in each step.
    for (; parts >= 4u; parts /= 4u) {
        uint step = parts / 4u * apart;
        if (part < parts / 4u) {
            sums[t] += sums[t + step] + sums[t + 2u * step] + sums[t + 3u * step];
        }
        barrier();
    }
    vec4 all = sums[t];
    if (parts == 2u && part == 0u) {
        all += sums[t + apart];
    }
    barrier();
    return all;
}

// The first of the sums; the others move up. So a loop over the rows there are names no element by a variable, and no
// barrier is in a condition, which PoCL compiles wrongly.
vec4 next(inout vec4 own[ROWS])
{
    vec4 first = own[0];
    [[unroll]] for (uint r = 1u; r < ROWS; ++r) {
        own[r - 1u] = own[r];
    }
    return first;
}

#ifdef COLUMNS
// Four elements of A, at `at` among fours, times their gain at `k`.
vec4 gained(uint at, uint k)
{
    vec4 x = vec4(a[at]);
    return NORMED != 0u ? x * vec4(gain[k]) : x;
}

// A sum, with the products of EACH elements of A from the fours at `at` on, and of B; their gain begins at `k`.
vec4 with_products(vec4 sum, uint at, uint k, WEIGHTS weights)
{
#ifdef EIGHT
    sum = fma(gained(at, k), vec4(unpackHalf2x16(weights.x), unpackHalf2x16(weights.y)), sum);
    return fma(gained(at + 1u, k + 1u), vec4(unpackHalf2x16(weights.z), unpackHalf2x16(weights.w)), sum);
#else
    return fma(gained(at, k), weights, sum);
#endif
}

// The sum of the squares of EACH elements of A.
float squares_of(uint at)
{
    vec4 x = vec4(a[at]);
    float sum = dot(x, x);
#ifdef EIGHT
    x = vec4(a[at + 1u]);
    sum += dot(x, x);
#endif
    return sum;
}
#else
// The element of A at `at`, of row `row`, times the gain at `k`; its square is added to those of the row.
float gained(uint at, uint k, uint row, inout vec4 squares)
{
    float x = float(a[at]);
    if (NORMED != 0u) {
        squares[row] = fma(x, x, squares[row]);
        x *= float(gain[k]);
    }
    return x;
}
#endif

void main()
{
    uint t = gl_LocalInvocationIndex;
    uint batch = gl_WorkGroupID.z;
    uint a_at = p.a_first + batch / p.inner * p.a_outer + batch % p.inner * p.a_inner;
    uint b_at = p.b_first + batch / p.inner * p.b_outer + batch % p.inner * p.b_inner;
    vec4 own[ROWS];
    vec4 other[ROWS];
    // Of the squares of each row.
    vec4 squares = vec4(0.0);
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        own[r] = vec4(0.0);
        other[r] = vec4(0.0);
    }
#ifdef COLUMNS
    uint col = gl_WorkGroupID.x * COLS + t / TEAM;
    uint part = t % TEAM;
    if (col < p.n) {
        uint from = (b_at + col * p.b_col) / EACH;
        uint steps = p.k / EACH;
        // Two steps are under way at once; what is read twice at the end is not added.
        for (uint k = part; k < steps; k += 2u * TEAM) {
            uint late = min(k + TEAM, steps - 1u);
            WEIGHTS weights[2] = { WEIGHTS(b[from + k]), WEIGHTS(b[from + late]) };
#ifdef GATED
            WEIGHTS others[2] = { WEIGHTS(other_b[from + k]), WEIGHTS(other_b[from + late]) };
#endif
            [[unroll]] for (uint i = 0u; i < 2u; ++i) {
                if (k + i * TEAM < steps) {
                    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                        if (r < HELD && r < p.m) {
                            uint at = (a_at + r * p.a_row + (k + i * TEAM) * EACH) / 4u;
                            uint gain_at = (k + i * TEAM) * EACH / 4u;
                            own[r] = with_products(own[r], at, gain_at, weights[i]);
#ifdef GATED
                            other[r] = with_products(other[r], at, gain_at, others[i]);
#endif
                            if (NORMED != 0u) {
                                squares[r] += squares_of(at);
                            }
                        }
                    }
                }
            }
        }
    }
    // The sum of the four components is one; the squares are reduced in another.
    [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
        if (NORMED != 0u) {
            own[r] = vec4(own[r].x + own[r].y + own[r].z + own[r].w, squares[r], 0.0, 0.0);
        }
    }
    for (uint r = 0u; r < p.m; ++r) {
        vec4 all = total(next(own), part, TEAM, 1u);
#ifdef GATED
        vec4 rest = total(next(other), part, TEAM, 1u);
#else
        vec4 rest = vec4(0.0);
#endif
        if (part == 0u) {
            vec2 sum = vec2(all.x + all.y + all.z + all.w, rest.x + rest.y + rest.z + rest.w);
            if (NORMED != 0u) {
                sum = row_factor(all.y) * vec2(all.x, sum.y);
            }
            store(batch, r, col, sum.x, sum.y);
        }
    }
#else
    uint parts = gl_WorkGroupSize.x / ACROSS;
    uint col = (gl_WorkGroupID.x * ACROSS + t % ACROSS) * 4u;
    uint part = t / ACROSS;
    if (col < p.n) {
        uint step = parts * p.b_row / 4u;
        uint from = (b_at + part * p.b_row + col) / 4u;
        uint k = part;
        // Four rows are under way at once.
        for (; k + 3u * parts < p.k; k += 4u * parts) {
            vec4 weights[4];
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                weights[i] = vec4(b[from + i * step]);
            }
#ifdef GATED
            vec4 others[4];
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                others[i] = vec4(other_b[from + i * step]);
            }
#endif
            from += 4u * step;
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                if (r < HELD && r < p.m) {
                    [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                        float x = gained(a_at + r * p.a_row + (k + i * parts) * p.a_col, k + i * parts, r, squares);
                        own[r] += x * weights[i];
#ifdef GATED
                        other[r] += x * others[i];
#endif
                    }
                }
            }
        }
        for (; k < p.k; k += parts) {
            vec4 weights = vec4(b[from]);
#ifdef GATED
            vec4 others = vec4(other_b[from]);
#endif
            from += step;
            [[unroll]] for (uint r = 0u; r < ROWS; ++r) {
                if (r < HELD && r < p.m) {
                    float x = gained(a_at + r * p.a_row + k * p.a_col, k, r, squares);
                    own[r] += x * weights;
#ifdef GATED
                    other[r] += x * others;
#endif
                }
            }
        }
    }
    if (NORMED != 0u) {
        squares = total(squares, part, parts, ACROSS);
    }
    for (uint r = 0u; r < p.m; ++r) {
        vec4 all = total(next(own), part, parts, ACROSS);
#ifdef GATED
        vec4 rest = total(next(other), part, parts, ACROSS);
#else
        vec4 rest = vec4(0.0);
#endif
        if (part == 0u) {
            if (NORMED != 0u) {
                float factor = row_factor(squares[r]);
                all *= factor;
                rest *= factor;
            }
            [[unroll]] for (uint i = 0u; i < 4u; ++i) {
                store(batch, r, col + i, all[i], rest[i]);
            }
        }
    }
#endif
}
