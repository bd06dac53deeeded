// The extensions of kernels with cooperative matrices. Include it before anything else.
#ifndef ONEPOOL_COOPERATIVE_GLSL
#define ONEPOOL_COOPERATIVE_GLSL

#pragma use_vulkan_memory_model
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require

#endif
