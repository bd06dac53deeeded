// Operands that are read four elements at a time: with TEXELS as texels of `float32`, or with HALVES of `float16`; else x as X_ELEMENT,
// which is T unless defined before, and w as VEC.
#ifndef ONEPOOL_TEXELS_GLSL
#define ONEPOOL_TEXELS_GLSL

#ifndef X_ELEMENT
#define X_ELEMENT T
#endif

#if defined(HALVES)
layout(set = 0, binding = 0, rgba16f) uniform readonly imageBuffer x;
layout(set = 0, binding = 1, rgba16f) uniform readonly imageBuffer w;
#define X_TEXEL(i) imageLoad(x, i)
#define W_TEXEL(i) imageLoad(w, i)
#elif defined(TEXELS)
layout(set = 0, binding = 0) uniform samplerBuffer x;
layout(set = 0, binding = 1) uniform samplerBuffer w;
#define X_TEXEL(i) texelFetch(x, i)
#define W_TEXEL(i) texelFetch(w, i)
#else
layout(set = 0, binding = 0, std430) readonly buffer X { X_ELEMENT x[]; };
layout(set = 0, binding = 1, std430) readonly buffer W { VEC w[]; };
#define W_TEXEL(i) vec4(w[i])
#endif

#endif
