// Each work-group scales a row by two sums that a function takes over workgroup memory.
#version 450
layout(local_size_x = 256) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uint y[]; };
layout(push_constant) uniform Params { uint rows, len; } p;
shared uint parts[256];

uint total(uint v)
{
    uint t = gl_LocalInvocationIndex;
    parts[t] = v;
    barrier();
    for (uint step = 128u; step > 0u; step /= 2u) {
        if (t < step) {
            parts[t] += parts[t + step];
        }
        barrier();
    }
    uint sum = parts[0];
    barrier();
    return sum;
}

void main()
{
    uint row = gl_WorkGroupID.x;
    if (row >= p.rows) {
        return;
    }
    uint sum = 0u;
    for (uint i = gl_LocalInvocationIndex; i < p.len; i += 256u) {
        sum += x[row * p.len + i];
    }
    sum = total(sum);
    uint mixed = 0u;
    for (uint i = gl_LocalInvocationIndex; i < p.len; i += 256u) {
        mixed += x[row * p.len + i] ^ sum;
    }
    mixed = total(mixed);
    for (uint i = gl_LocalInvocationIndex; i < p.len; i += 256u) {
        y[row * p.len + i] = x[row * p.len + i] * sum + mixed;
    }
}
