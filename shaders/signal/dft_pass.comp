// One pass of discrete Fourier transforms (Stockham's autosort form for any factors): an invocation computes
// one element. Before a pass, row r holds `done` transforms, element k of the transform of every n / done-th sample
// from j on at k * (n / done) + j; the pass multiplies `done` by `radix`.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

// enum: Samples
#define SAMPLES_REAL 0u           // real ones
#define SAMPLES_COMPLEX 1u        // complex ones
#define SAMPLES_HALF_SPECTRUM 2u  // half of a spectrum that mirrors itself

LOCAL_SIZE(0, 64);
SPEC(1, uint, FIRST, 1u);       // reads x, else From
SPEC(2, uint, LAST, 1u);        // writes y, else To
SPEC(3, uint, SAMPLES, 0u);
SPEC(4, uint, WINDOWED, 0u);
SPEC(5, uint, TO_REAL, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Window { T window[]; };
layout(set = 0, binding = 2, std430) readonly buffer Roots { vec2 roots[]; };
layout(set = 0, binding = 3, std430) readonly buffer From { vec2 from[]; };
layout(set = 0, binding = 4, std430) writeonly buffer To { vec2 to[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint items;
    uint n;
    uint done;
    uint radix;
    uint width;                     // elements of a row that are written
    uint used;                      // samples of a row; zeros follow
    uint inner;
    uint x_outer, x_inner, x_step;  // where rows lie, in samples
    uint y_outer, y_inner, y_step;
    float scale;
} p;

vec2 sample_of(uint first, uint t)
{
    bool mirrored = SAMPLES == SAMPLES_HALF_SPECTRUM && t > p.n / 2u;
    t = mirrored ? p.n - t : t;
    if (t >= p.used) {
        return vec2(0.0);
    }
    uint at = first + t * p.x_step;
    vec2 v = SAMPLES == SAMPLES_REAL ? vec2(float(x[at]), 0.0) : vec2(float(x[2u * at]), float(x[2u * at + 1u]));
    v.y = mirrored ? -v.y : v.y;
    return WINDOWED != 0u ? v * float(window[t]) : v;
}

void main()
{
    uint i = linear_id();
    if (i >= p.items) {
        return;
    }
    uint row = i / p.width;
    uint at = i - row * p.width;
    uint outer = row / p.inner;
    uint lane = row - outer * p.inner;
    uint run = p.n / p.done;        // elements of one finished transform lie so far apart
    uint m = run / p.radix;
    uint k = at / m;
    uint j = at - k * m;
    uint source = FIRST != 0u ? outer * p.x_outer + lane * p.x_inner : row * p.n + k % p.done * run;
    uint turn = k * m;              // below n
    uint root = 0u;
    // In parts, which keeps digits of long sums.
    vec2 sum = vec2(0.0);
    vec2 part = vec2(0.0);
    for (uint q = 0u; q < p.radix; ++q) {
        uint t = j + q * m;
        vec2 v = FIRST != 0u ? sample_of(source, t) : from[source + t];
        vec2 w = roots[root];
        part += vec2(v.x * w.x - v.y * w.y, v.x * w.y + v.y * w.x);
        if ((q & 31u) == 31u) {
            sum += part;
            part = vec2(0.0);
        }
        root += turn;
        root -= root >= p.n ? p.n : 0u;
    }
    sum += part;
    if (LAST == 0u) {
        to[row * p.n + at] = sum;
        return;
    }
    sum *= p.scale;
    uint target = outer * p.y_outer + lane * p.y_inner + at * p.y_step;
    if (TO_REAL != 0u) {
        y[target] = T(sum.x);
    } else {
        y[2u * target] = T(sum.x);
        y[2u * target + 1u] = T(sum.y);
    }
}
