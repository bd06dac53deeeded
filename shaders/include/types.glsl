// Enables the extensions of a variant's element type. A variant line defines T (and VEC where there is one)
// and the EXT_* macros below; all arithmetic types are spelled as GLSL spells them.
#ifndef ONEPOOL_TYPES_GLSL
#define ONEPOOL_TYPES_GLSL

#ifdef EXT_FLOAT16
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#if defined(EXT_FLOAT16) || defined(EXT_STORAGE16) || defined(EXT_INT16)
#extension GL_EXT_shader_16bit_storage : require
#endif
#ifdef EXT_INT16
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#endif
#ifdef EXT_INT8
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#endif
#if defined(EXT_INT8) || defined(EXT_STORAGE8)
#extension GL_EXT_shader_8bit_storage : require
#endif
#ifdef EXT_INT64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
#ifdef EXT_FLOAT64
#extension GL_EXT_shader_explicit_arithmetic_types_float64 : require
#endif

#endif
