// A summand of the output that lies as the output does, added before the activation. Include it after spec.glsl, with T, or VEC
// and OUT4 where the output is written in whole quads, and SUMMAND, the number of its binding.
#ifndef ONEPOOL_SUMMAND_GLSL
#define ONEPOOL_SUMMAND_GLSL

SPEC(22, uint, SUMMED, 0u);   // whether there is one

#ifdef OUT4
layout(set = 0, binding = SUMMAND, std430) readonly buffer Summand { VEC summand[]; };

vec4 plus_summand(vec4 v, uint quad)
{
    return SUMMED != 0u ? v + vec4(summand[quad]) : v;
}
#else
layout(set = 0, binding = SUMMAND, std430) readonly buffer Summand { T summand[]; };

float plus_summand(float v, uint at)
{
    return SUMMED != 0u ? v + float(summand[at]) : v;
}
#endif

#endif
