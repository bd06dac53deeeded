// Sums of each work-group by a tree in workgroup memory, with a size by specialization, and a scan.
#version 450
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint SCALE = 1u;
layout(constant_id = 2) const bool SCAN = false;
const uint TWICE = SCALE * 2u + gl_WorkGroupSize.x;
layout(set = 0, binding = 0, std430) readonly buffer X { float x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Params { uint n; } p;
shared float part[2][gl_WorkGroupSize.x];
shared vec4 column[4];

void main()
{
    uint i = gl_GlobalInvocationID.x;
    uint lane = gl_LocalInvocationIndex;
    part[0][lane] = i < p.n ? x[i] * float(TWICE) : 0.0;
    barrier();
    uint from = 0u;
    if (SCAN) {
        for (uint reach = 1u; reach < gl_WorkGroupSize.x; reach *= 2u) {
            float v = part[from][lane];
            if (lane >= reach) {
                v += part[from][lane - reach];
            }
            part[1u - from][lane] = v;
            from = 1u - from;
            barrier();
        }
        if (i < p.n) {
            y[i] = part[from][lane];
        }
        return;
    }
    for (uint reach = gl_WorkGroupSize.x / 2u; reach > 0u; reach /= 2u) {
        if (lane < reach) {
            part[0][lane] += part[0][lane + reach];
        }
        barrier();
    }
    // Components of one vector, written by different invocations.
    if (lane < 16u) {
        column[lane / 4u][lane % 4u] = part[0][0] + float(lane);
    }
    barrier();
    if (i < p.n) {
        vec4 all = column[0] + column[1] + column[2] + column[3];
        y[i] = all[lane % 4u];
    }
}
