// A cache with an update laid over it along one axis, each element of the batch at its own place.
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
SPEC(1, uint, GIVEN, 1u);      // whether there are places, of int64
SPEC(2, uint, CIRCULAR, 0u);

layout(set = 0, binding = 0, std430) readonly buffer Past { T past[]; };
layout(set = 0, binding = 1, std430) readonly buffer Update { T update[]; };
layout(set = 0, binding = 2, std430) readonly buffer At { int at[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint prefixes;     // of each element of the batch
    uint size, len;    // of the axis, in the cache and in the update
    uint inner;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint inner = i % p.inner;
    uint rest = i / p.inner;
    int place = int(rest % p.size);
    uint prefix = rest / p.size;
    int first = GIVEN != 0u ? at[prefix / p.prefixes * 2u] : 0;
    int size = int(p.size);
    if (CIRCULAR != 0u) {
        first -= first / size * size;
        place -= first;
        place += place < 0 ? size : 0;
        place -= place >= size ? size : 0;
    } else {
        // A place that is far out of range must not wrap around.
        place -= clamp(first, -size, size);
    }
    if (place >= 0 && place < int(p.len)) {
        y[i] = update[(prefix * p.len + uint(place)) * p.inner + inner];
    } else {
        y[i] = past[i];
    }
}
