// y[b, t] = x[b, t < lens[b] ? lens[b] - 1 - t : t] over elements of any size.
// variant: b8    T=b8   EXT_INT8=1
// variant: b16   T=b16  EXT_INT16=1
// variant: b32   T=b32
// variant: b64   T=b64
// variant: b128  T=b128
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
// Words of one length: 2 for int64, of which the lower one counts.
SPEC(1, uint, INDEX_WORDS, 2u);

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Lens { int lens[]; };
layout(set = 0, binding = 2, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint inner;
    uint batch;
    uint times;
    uint batch_step;    // slices of `inner` elements from one sequence to the next
    uint time_step;     // and from one element of a sequence to the next
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint slice = i / p.inner;
    uint b = slice / p.batch_step % p.batch;
    uint t = slice / p.time_step % p.times;
    uint len = uint(clamp(lens[b * INDEX_WORDS], 0, int(p.times)));
    uint from = t < len ? len - 1u - t : t;
    y[i] = x[(b * p.batch_step + from * p.time_step) * p.inner + i % p.inner];
}
