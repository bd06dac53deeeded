// The loss -weight[c] * logs[n, c, i] of each place (n, i) with label c, or sums of losses and weights for each
// work-group. Labels that are no class count as ones to ignore.
// variant: f32  T=f32
// variant: f16  T=f16  EXT_FLOAT16=1
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
// Words of one label: 2 for int64.
SPEC(1, uint, INDEX_WORDS, 2u);
SPEC(2, uint, WEIGHTED, 0u);
SPEC(3, uint, IGNORES, 0u);
SPEC(4, uint, SUMS, 0u);

layout(set = 0, binding = 0, std430) readonly buffer Logs { T logs[]; };
layout(set = 0, binding = 1, std430) readonly buffer Labels { int labels[]; };
layout(set = 0, binding = 2, std430) readonly buffer Weights { T weights[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Y { T y[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Sums { vec2 sums[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint classes;
    uint inner;
    int ignore_low;
    int ignore_high;
} p;

shared vec2 part[64];

// The loss and the weight of a place.
vec2 loss(uint place)
{
    int label = labels[place * INDEX_WORDS];
    int high = INDEX_WORDS == 2u ? labels[place * INDEX_WORDS + 1u] : label >> 31;
    bool ignored = IGNORES != 0u && label == p.ignore_low && high == p.ignore_high;
    if (ignored || high != 0 || label < 0 || label >= int(p.classes)) {
        return vec2(0.0);
    }
    uint at = (place / p.inner * p.classes + uint(label)) * p.inner + place % p.inner;
    float weight = WEIGHTED != 0u ? float(weights[label]) : 1.0;
    return vec2(weight == 0.0 ? 0.0 : -weight * float(logs[at]), weight);
}

void main()
{
    if (SUMS == 0u) {
        uint i = linear_id();
        if (i < p.n) {
            y[i] = T(loss(i).x);
        }
        return;
    }
    vec2 sum = vec2(0.0);
    uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < p.n; i += step) {
        sum += loss(i);
    }
    uint lane = gl_LocalInvocationID.x;
    part[lane] = sum;
    barrier();
    for (uint half_ = 32u; half_ > 0u; half_ /= 2u) {
        if (lane < half_) {
            part[lane] += part[lane + half_];
        }
        barrier();
    }
    if (lane == 0u) {
        sums[gl_WorkGroupID.x] = part[0];
    }
}
