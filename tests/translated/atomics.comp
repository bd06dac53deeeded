// Integer atomics in global and workgroup memory.
#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0, std430) buffer Counters { uint total; int low; int high; uint bits; uint swapped; uint taken[4]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uint y[]; };
shared uint local_total;
shared int local_high;

void main()
{
    uint i = gl_GlobalInvocationID.x;
    if (gl_LocalInvocationIndex == 0u) {
        local_total = 0u;
        local_high = -1000;
    }
    memoryBarrierShared();
    barrier();
    atomicAdd(local_total, i);
    atomicMax(local_high, int(i % 37u) - 20);
    barrier();
    if (gl_LocalInvocationIndex == 0u) {
        atomicAdd(total, local_total);
        atomicMax(high, local_high);
        y[gl_WorkGroupID.x] = local_total;
    }
    atomicMin(low, -int(i));
    atomicOr(bits, 1u << (i % 32u));
    atomicCompSwap(swapped, 5u, 9u);
    atomicAdd(taken[i & 3u], 1u);
}
