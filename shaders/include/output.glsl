// The output of products, T, or VEC with OUT4, where it is written in whole quads. A summand of it lies as it does and is added
// before the activation. Include it after spec.glsl, with SUMMAND, the number of the summand's binding; OUTPUT is that of the output.
#ifndef ONEPOOL_OUTPUT_GLSL
#define ONEPOOL_OUTPUT_GLSL

SPEC(22, uint, SUMMED, 0u);   // whether there is a summand

#ifndef OUTPUT
#define OUTPUT 3
#endif

#ifdef OUT4
layout(set = 0, binding = OUTPUT, std430) writeonly buffer Y { VEC y[]; };
layout(set = 0, binding = SUMMAND, std430) readonly buffer Summand { VEC summand[]; };

vec4 plus_summand(vec4 v, uint quad)
{
    return SUMMED != 0u ? v + vec4(summand[quad]) : v;
}
#else
layout(set = 0, binding = OUTPUT, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = SUMMAND, std430) readonly buffer Summand { T summand[]; };

float plus_summand(float v, uint at)
{
    return SUMMED != 0u ? v + float(summand[at]) : v;
}
#endif

#endif
