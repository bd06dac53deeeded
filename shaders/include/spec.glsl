// Specialization constants. Declare them only through these macros: the build compiles every file once
// more without them, for spirv-reflect.
#ifndef ONEPOOL_SPEC_GLSL
#define ONEPOOL_SPEC_GLSL

#ifdef ONEPOOL_REFLECT
#define SPEC(id, type, name, value) const type name = value
#define LOCAL_SIZE(id, x) layout(local_size_x = x) in
#define LOCAL_SIZE_2D(idx, x, idy, y) layout(local_size_x = x, local_size_y = y) in
#else
#define SPEC(id, type, name, value) layout(constant_id = id) const type name = value
#define LOCAL_SIZE(id, x) layout(local_size_x_id = id, local_size_x = x) in
#define LOCAL_SIZE_2D(idx, x, idy, y) \
    layout(local_size_x_id = idx, local_size_x = x, local_size_y_id = idy, local_size_y = y) in
#endif

#endif
