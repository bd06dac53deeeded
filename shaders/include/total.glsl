// The sum of a value over a work-group, for every one of its LANES invocations, a power of two. Define LANES before; COMBINED(a, b)
// takes another operation in place of the sum.
#ifndef ONEPOOL_TOTAL_GLSL
#define ONEPOOL_TOTAL_GLSL

shared float parts[LANES];

float total(float v)
{
    uint t = gl_LocalInvocationIndex;
    parts[t] = v;
    barrier();
    for (uint step = LANES / 2u; step > 0u; step /= 2u) {
        if (t < step) {
#ifdef COMBINED
            parts[t] = COMBINED(parts[t], parts[t + step]);
#else
            parts[t] += parts[t + step];
#endif
        }
        barrier();
    }
    float sum = parts[0];
    // The parts are reused.
    barrier();
    return sum;
}

#endif
