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
SPEC(3, uint, IN_PLACE, 0u);   // whether the output has the cache already, and invocations are those of the update

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

// Where the update of a prefix begins; in a circle that is a row of the cache.
int row_of(uint prefix)
{
    int first = GIVEN != 0u ? at[prefix / p.prefixes * 2u] : 0;
    int size = int(p.size);
    if (CIRCULAR != 0u) {
        first -= first / size * size;
        return first < 0 ? first + size : first;
    }
    // A place that is far out of range must not wrap around.
    return clamp(first, -size, size);
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint inner = i % p.inner;
    uint rest = i / p.inner;
    if (IN_PLACE != 0u) {
        int to = row_of(rest / p.len) + int(rest % p.len);
        to -= CIRCULAR != 0u && to >= int(p.size) ? int(p.size) : 0;
        if (to >= 0 && to < int(p.size)) {
            y[(rest / p.len * p.size + uint(to)) * p.inner + inner] = update[i];
        }
        return;
    }
    int place = int(rest % p.size);
    uint prefix = rest / p.size;
    place -= row_of(prefix);
    place += CIRCULAR != 0u && place < 0 ? int(p.size) : 0;
    if (place >= 0 && place < int(p.len)) {
        y[i] = update[(prefix * p.len + uint(place)) * p.inner + inner];
    } else {
        y[i] = past[i];
    }
}
