// y = condition ? a : b over n elements of one size, with broadcasting; b64 moves words, so it needs no 64-bit
// integers.
// variant: b8   T=b8
// variant: b16  T=b16 EXT_STORAGE16
// variant: b32  T=b32
// variant: b64  T=b64
#version 450
#define EXT_STORAGE8
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "nest.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, int, RANK, 1);

layout(set = 0, binding = 0, std430) readonly buffer Condition { uint8_t condition[]; };
layout(set = 0, binding = 1, std430) readonly buffer A { T a[]; };
layout(set = 0, binding = 2, std430) readonly buffer B { T b[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint sizes[NEST_MAX];
    int c_strides[NEST_MAX];
    int a_strides[NEST_MAX];
    int b_strides[NEST_MAX];
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    int at_c = 0;
    int at_a = 0;
    int at_b = 0;
#define ADVANCE(d, c) at_c += c * p.c_strides[d]; at_a += c * p.a_strides[d]; at_b += c * p.b_strides[d];
    FOR_EACH_COORDINATE(RANK, i, ADVANCE)
    if (uint(condition[at_c]) != 0u) {
        y[i] = a[at_a];
    } else {
        y[i] = b[at_b];
    }
}
