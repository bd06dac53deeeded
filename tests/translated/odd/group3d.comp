#version 450
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z = 2) in; layout(local_size_x = 4, local_size_y = 3) in;
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
shared uint s[gl_WorkGroupSize.x * gl_WorkGroupSize.y * gl_WorkGroupSize.z];
void main() { s[gl_LocalInvocationIndex] = gl_LocalInvocationID.z * 100u + gl_LocalInvocationID.y * 10u + gl_LocalInvocationID.x; barrier(); y[gl_WorkGroupID.x * 64u + gl_LocalInvocationIndex] = s[gl_WorkGroupSize.x * gl_WorkGroupSize.y * 2u - 1u - gl_LocalInvocationIndex] + gl_GlobalInvocationID.y * 1000u + gl_NumWorkGroups.x * 10000u + gl_WorkGroupSize.z; }
