// Softmax and its relatives along one axis: an invocation, or with GROUPED a work-group, does one vector.
// Element k of vector r lies at r / inner * len * inner + r % inner + k * inner.
// variant: f32          T=f32
// variant: f16          T=f16 EXT_STORAGE16
// variant: f32_grouped  T=f32 GROUPED
// variant: f16_grouped  T=f16 EXT_STORAGE16 GROUPED
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "math.glsl"

// enum: Kind
#define KIND_SOFT 0u  // the softmax
#define KIND_LOG 1u   // its logarithm
#define KIND_HARD 2u  // one for the first of the largest, else zero
#define KIND_L1 3u    // x / sum |x|
#define KIND_L2 4u    // x / norm

#include "lines.glsl"
SPEC(1, uint, KIND, 0u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint vectors, len, inner;
} p;

#ifdef GROUPED
shared uint places[STEP];

// The largest value and its first position.
void largest(inout float v, inout uint at)
{
    uint t = gl_LocalInvocationIndex;
    parts[t] = v;
    places[t] = at;
    barrier();
    for (uint step = STEP / 2u; step > 0u; step /= 2u) {
        if (t < step) {
            float other = parts[t + step];
            // The first NaN is above all numbers.
            bool here = is_nan(parts[t]);
            bool lower = places[t + step] < places[t];
            bool above = !here && (other > parts[t] || (other == parts[t] && lower));
            if (is_nan(other) ? !here || lower : above) {
                parts[t] = other;
                places[t] = places[t + step];
            }
        }
        barrier();
    }
    v = parts[0];
    at = places[0];
    barrier();
}
#else
void largest(inout float v, inout uint at)
{
}
#endif

void main()
{
    uint row = vector_index();
    uint start = START;
    if (row >= p.vectors) {
        return;
    }
    uint first = row / p.inner * p.len * p.inner + row % p.inner;
    if (KIND >= KIND_L1) {
        float sum = 0.0;
        for (uint k = start; k < p.len; k += STEP) {
            float v = float(x[first + k * p.inner]);
            sum += KIND == KIND_L1 ? abs(v) : v * v;
        }
        sum = total(sum);
        float norm = KIND == KIND_L1 ? sum : sqrt(sum);
        // A vector of zeros stays.
        norm = norm == 0.0 ? 1.0 : norm;
        for (uint k = start; k < p.len; k += STEP) {
            uint at = first + k * p.inner;
            y[at] = T(float(x[at]) / norm);
        }
        return;
    }
    float top = uintBitsToFloat(0xff800000u);
    uint place = 0xffffffffu;
    for (uint k = start; k < p.len; k += STEP) {
        float v = float(x[first + k * p.inner]);
        if (v > top || place == 0xffffffffu || (is_nan(v) && !is_nan(top))) {
            top = v;
            place = k;
        }
    }
    largest(top, place);
    if (KIND == KIND_HARD) {
        for (uint k = start; k < p.len; k += STEP) {
            y[first + k * p.inner] = T(k == place ? 1.0 : 0.0);
        }
        return;
    }
    float sum = 0.0;
    for (uint k = start; k < p.len; k += STEP) {
        sum += exp(float(x[first + k * p.inner]) - top);
    }
    sum = total(sum);
    float log_sum = log(sum);
    for (uint k = start; k < p.len; k += STEP) {
        uint at = first + k * p.inner;
        float v = float(x[at]) - top;
        y[at] = T(KIND == KIND_LOG ? v - log_sum : exp(v) / sum);
    }
}
