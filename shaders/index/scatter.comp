// y[line + index * step] = reduced with the updates of the line that name it; y holds the data before.
// Updates with an index out of range are left out.
// variant: b8    T=b8    EXT_INT8=1
// variant: b16   T=b16   EXT_INT16=1
// variant: b32   T=b32
// variant: b64   T=b64
// variant: b128  T=b128
// variant: f32   T=f32      ACC=float    FLOAT=1
// variant: f16   T=f16  ACC=float    FLOAT=1  EXT_FLOAT16=1
// variant: i32   T=i32        ACC=int
// variant: i64   T=i64    ACC=int64_t  EXT_INT64=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#include "nest.glsl"
#include "math.glsl"

// How the work is cut into invocations.
// enum: Mode
#define MODE_UPDATE 0u   // one for each update: nothing is reduced
#define MODE_LINE 1u     // one for each line, which takes the line's updates in order
#define MODE_ELEMENT 2u  // one for each element, which applies its updates of the line in order

// What an update does to the element that it meets.
// enum: Reduction
#define REDUCTION_NONE 0u  // replaces it
#define REDUCTION_ADD 1u   // is added
#define REDUCTION_MUL 2u   // is multiplied with it
#define REDUCTION_MIN 3u   // the smaller one stays
#define REDUCTION_MAX 4u   // the larger one stays

LOCAL_SIZE(0, 64);
SPEC(1, int, RANK, 6);
// Words of one index: 2 for int64, of which the lower one counts.
SPEC(2, uint, INDEX_WORDS, 2u);
SPEC(3, uint, MODE, 0u);
SPEC(4, uint, REDUCTION, 0u);

layout(set = 0, binding = 0, std430) readonly buffer Index { int index[]; };
layout(set = 0, binding = 1, std430) readonly buffer Updates { T updates[]; };
layout(set = 0, binding = 2, std430) buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint sizes[6];
    int data_strides[6];
    int index_strides[6];
    int update_strides[6];
    uint n;
    uint lines;
    uint updates;       // of each line
    uint size;          // positions on each line
    uint data_step;
    uint index_step;
    uint update_step;
} p;

int position(uint at)
{
    int i = index[at * INDEX_WORDS];
    i = i < 0 ? i + int(p.size) : i;
    return i < int(p.size) ? i : -1;
}

#ifdef ACC
ACC reduced(ACC a, ACC u)
{
    if (REDUCTION == REDUCTION_ADD) {
        return a + u;
    }
    if (REDUCTION == REDUCTION_MUL) {
        return a * u;
    }
#ifdef FLOAT
    // A NaN stays.
    if (is_nan(a) || is_nan(u)) {
        return a + u;
    }
#endif
    if (REDUCTION == REDUCTION_MIN) {
        return u < a ? u : a;
    }
    return u > a ? u : a;
}
#endif

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint line = i % p.lines;
    uint which = i / p.lines;
    int data = 0;
    int indices = 0;
    int update = 0;
#define ADD(d, c)                     \
    data += c * p.data_strides[d];    \
    indices += c * p.index_strides[d]; \
    update += c * p.update_strides[d];
    FOR_EACH_COORDINATE(RANK, line, ADD)
    if (MODE == MODE_UPDATE) {
        int at = position(uint(indices) + which * p.index_step);
        if (at >= 0) {
            y[uint(data) + uint(at) * p.data_step] = updates[uint(update) + which * p.update_step];
        }
        return;
    }
#ifdef ACC
    if (MODE == MODE_LINE) {
        for (uint u = 0u; u < p.updates; ++u) {
            int at = position(uint(indices) + u * p.index_step);
            if (at >= 0) {
                uint to = uint(data) + uint(at) * p.data_step;
                y[to] = T(reduced(ACC(y[to]), ACC(updates[uint(update) + u * p.update_step])));
            }
        }
        return;
    }
    uint to = uint(data) + which * p.data_step;
    ACC acc = ACC(y[to]);
    for (uint u = 0u; u < p.updates; ++u) {
        if (position(uint(indices) + u * p.index_step) == int(which)) {
            // Rounded as often as where each update is stored.
            acc = ACC(T(reduced(acc, ACC(updates[uint(update) + u * p.update_step]))));
        }
    }
    y[to] = T(acc);
#endif
}
