// Functions of one float that GLSL lacks or whose built-in is allowed too large an error. Each is within a
// few units in the last place of what exp, log and sqrt of the device give.
#ifndef ONEPOOL_MATH_GLSL
#define ONEPOOL_MATH_GLSL

#define PI_OVER_2 1.57079633
#define LN_2 0.693147181

// Bits are tested, because compilers may assume that floats are no NaN.
bool is_nan(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bool is_inf(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u;
}

// max and min that keep a NaN of x.
float at_least(float x, float low)
{
    return is_nan(x) ? x : max(x, low);
}

float at_most(float x, float high)
{
    return is_nan(x) ? x : min(x, high);
}

// log((1 + s) / (1 - s)) for |s| <= 0.18.
float log_ratio(float s)
{
    float z = s * s;
    return 2.0 * s * (1.0 + z * (0.333333333 + z * (0.2 + z * (0.142857143 + z * 0.111111111))));
}

float ln(float x)
{
    return x > 0.7 && x < 1.42 ? log_ratio((x - 1.0) / (x + 1.0)) : log(x);
}

// log(1 + x)
float log1p(float x)
{
    return x > -0.3 && x < 0.42 ? log_ratio(x / (2.0 + x)) : log(1.0 + x);
}

// exp(x) - 1
float expm1(float x)
{
    float p = 1.98412698e-4 + x * 2.48015873e-5;
    p = 1.38888889e-3 + x * p;
    p = 8.33333333e-3 + x * p;
    p = 0.0416666667 + x * p;
    p = 0.166666667 + x * p;
    p = 0.5 + x * p;
    return abs(x) < 0.5 ? x + x * x * p : exp(x) - 1.0;
}

float tanh_exact(float x)
{
    float m = abs(x);
    float z = x * x;
    float small = x * (1.0 + z * (-0.33333311 + z * (0.13330476 + z * (-0.053387111 + z * 0.017988744))));
    float large = 1.0 - 2.0 / (exp(2.0 * m) + 1.0);
    return m < 0.5 ? small : (x < 0.0 ? -large : large);
}

float sinh_exact(float x)
{
    float z = x * x;
    float small =
        x * (1.0 + z * (0.166666667 + z * (8.33333333e-3 + z * (1.98412698e-4 + z * 2.75573192e-6))));
    // The half powers stay finite where the result does.
    float h = exp(0.5 * abs(x));
    float large = (0.5 * h) * h - 0.5 / (h * h);
    return abs(x) < 1.0 ? small : (x < 0.0 ? -large : large);
}

float cosh_exact(float x)
{
    float h = exp(0.5 * abs(x));
    return (0.5 * h) * h + 0.5 / (h * h);
}

// Built-in sines are only good between -pi and pi, and need be no better than 2^-11 there. The reduction takes
// pi / 2 in three parts, the first of so few bits that its multiples are exact (Cody and Waite, Software Manual
// for the Elementary Functions, 1980).
#define LARGEST_ANGLE 1e5

// Sine and cosine of x less `quarters` quarters of a turn, for up to LARGEST_ANGLE.
vec2 sine_cosine(float x, out uint quarters)
{
    float k = roundEven(x * 0.636619772);
    quarters = uint(int(k)) & 3u;
    float r = ((x - k * 1.5703125) - k * 4.837512969970703e-4) - k * 7.54978995e-8;
    float z = r * r;
    float s = r + r * z * (-0.1666666454 + z * (8.332725119e-3 + z * -1.958291721e-4));
    float c = 1.0 - 0.5 * z + z * z * (0.04166666454 + z * (-1.388827977e-3 + z * 2.454294755e-5));
    return vec2(s, c);
}

// The sine of x and `more` quarters of a turn.
float sine_from(float x, uint more)
{
    uint q;
    vec2 v = sine_cosine(x, q);
    q += more;
    float y = (q & 1u) != 0u ? v.y : v.x;
    return (q & 2u) != 0u ? -y : y;
}

float sin_exact(float x)
{
    return abs(x) <= LARGEST_ANGLE ? sine_from(x, 0u) : sin(x);
}

float cos_exact(float x)
{
    return abs(x) <= LARGEST_ANGLE ? sine_from(x, 1u) : cos(x);
}

float tan_exact(float x)
{
    if (!(abs(x) <= LARGEST_ANGLE)) {
        return tan(x);
    }
    uint q;
    vec2 v = sine_cosine(x, q);
    return (q & 1u) != 0u ? -v.y / v.x : v.x / v.y;
}

float asin_small(float x)
{
    float z = x * x;
    float p = 0.0450013801 + z * (0.0265545422 + z * 0.0380850236);
    return x * (1.0 + z * (0.166666724 + z * (0.0749885507 + z * p)));
}

float asin_exact(float x)
{
    float m = abs(x);
    float large = PI_OVER_2 - 2.0 * asin_small(sqrt(0.5 * (1.0 - m)));
    return m <= 0.5 ? asin_small(x) : (x < 0.0 ? -large : large);
}

float acos_exact(float x)
{
    float m = abs(x);
    float large = 2.0 * asin_small(sqrt(0.5 * (1.0 - m)));
    return m <= 0.5 ? PI_OVER_2 - asin_small(x) : (x < 0.0 ? 2.0 * PI_OVER_2 - large : large);
}

float atan_exact(float x)
{
    float m = abs(x);
    float r = m > 1.0 ? 1.0 / m : m;
    bool folded = r > 0.414213562;
    float t = folded ? (r - 1.0) / (r + 1.0) : r;
    float z = t * t;
    float p = 0.199995402 + z * (-0.142639464 + z * (0.107436316 - z * 0.0645159723));
    float y = t * (1.0 + z * (-0.333333318 + z * p));
    y = folded ? 0.5 * PI_OVER_2 + y : y;
    y = m > 1.0 ? PI_OVER_2 - y : y;
    return x < 0.0 ? -y : y;
}

float asinh_exact(float x)
{
    float m = abs(x);
    float y = m > 1e9 ? log(m) + LN_2 : log1p(m + m * m / (1.0 + sqrt(1.0 + m * m)));
    return x < 0.0 ? -y : y;
}

float acosh_exact(float x)
{
    // Below -2 the square would overflow, which hides that there is no number.
    float t = max(x, -2.0) - 1.0;
    return x > 1e9 ? log(x) + LN_2 : log1p(t + sqrt(t * (t + 2.0)));
}

float atanh_exact(float x)
{
    float m = abs(x);
    float y = 0.5 * log1p(2.0 * m / (1.0 - m));
    return x < 0.0 ? -y : y;
}

// Absolute error below 1e-7: an odd polynomial below 1, 1 - exp(-g(x)) above.
float erf(float x)
{
    float m = min(abs(x), 4.0);
    float z = m * m;
    float p = 5.18908742e-3 + z * (-8.01686428e-4 + z * 7.87587505e-5);
    p = 0.112835947 + z * (-0.0268542120 + z * p);
    float small = m * (1.12837917 + z * (-0.376126267 + z * p));
    float g = 4.75959630e-3 + m * (-5.96805627e-4 + m * (4.60580428e-5 - m * 1.63715142e-6));
    g = 0.631826052 + m * (0.110080083 + m * (-0.0264211360 + m * g));
    g = -3.20138053e-4 + m * (1.13023343 + m * g);
    float y = m < 1.0 ? small : 1.0 - exp(-g);
    return is_nan(x) ? x : (x < 0.0 ? -y : y);
}

// log(1 + exp(x)) without overflow.
float softplus(float x)
{
    return is_nan(x) ? x : max(x, 0.0) + log1p(exp(-abs(x)));
}

#endif
