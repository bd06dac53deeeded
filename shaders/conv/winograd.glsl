// Winograd's F(4x4, 3x3) with the points 0, A, -A, B, -B and infinity.
#ifndef ONEPOOL_WINOGRAD_GLSL
#define ONEPOOL_WINOGRAD_GLSL

#define POINTS 36u  // rust: elements of a transformed tile

const float A = 0.6875;  // rust: a point of interpolation, exact in few bits
const float B = 1.5;     // rust: another one
const float A2 = A * A;
const float B2 = B * B;

// A line of a transformed tile: points 1 to 4 are A, -A, B and -B.
struct Line {
    float first;
    vec4 middle;
    float last;
};

Line of_input(float d0, float d1, float d2, float d3, float d4, float d5)
{
    float even_a = fma(-B2, d2, d4);
    float odd_a = A * fma(-B2, d1, d3);
    float even_b = fma(-A2, d2, d4);
    float odd_b = B * fma(-A2, d1, d3);
    return Line(fma(A2 * B2, d0, fma(-(A2 + B2), d2, d4)),
                vec4(even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b),
                fma(A2 * B2, d1, fma(-(A2 + B2), d3, d5)));
}

Line of_taps(float g0, float g1, float g2)
{
    const float AT_A = 1.0 / (2.0 * A2 * (A2 - B2));
    const float AT_B = 1.0 / (2.0 * B2 * (B2 - A2));
    float even_a = fma(AT_A * A2, g2, AT_A * g0);
    float odd_a = AT_A * A * g1;
    float even_b = fma(AT_B * B2, g2, AT_B * g0);
    float odd_b = AT_B * B * g1;
    return Line(1.0 / (A2 * B2) * g0, vec4(even_a + odd_a, even_a - odd_a, even_b + odd_b, even_b - odd_b), g2);
}

vec4 of_products(float m0, float m1, float m2, float m3, float m4, float m5)
{
    float sum_a = m1 + m2;
    float odd_a = m1 - m2;
    float sum_b = m3 + m4;
    float odd_b = m3 - m4;
    return vec4(m0 + (sum_a + sum_b), fma(A, odd_a, B * odd_b), fma(A2, sum_a, B2 * sum_b),
                fma(A * A2, odd_a, fma(B * B2, odd_b, m5)));
}

#endif
