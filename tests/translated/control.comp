// Nested loops with breaks and continues, a switch that falls through and leaves the loop around it, early
// returns from a function and from the kernel, short circuits and a `do` loop.
#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Y { uint y[]; };
layout(push_constant) uniform Params { uint n; uint limit; } p;

uint first_factor(uint v)
{
    for (uint d = 2u; d * d <= v; d++) {
        if (v % d == 0u) {
            return d;
        }
    }
    return v;
}

uint steps(uint v)
{
    uint sum = 0u;
    for (uint i = 0u; i < 12u; i++) {
        for (uint j = 0u; j < 12u; j++) {
            if (j == v % 5u) {
                continue;
            }
            if (i * j > v) {
                break;
            }
            if (sum > 5000u) {
                return sum + 7u;
            }
            sum += i * 3u + j;
        }
        switch ((v + i) % 7u) {
        case 0u:
            sum += 1u;
        case 1u:
            sum += 10u;
            break;
        case 2u:
        case 3u:
            if ((v & 1u) == 0u) {
                continue;
            }
            sum += 100u;
            break;
        case 5u:
            if (i > 8u) {
                sum ^= 0x40u;
                break;
            }
            for (uint k = 0u; ; k++) {
                if (k == v % 3u) {
                    break;
                }
                sum += k;
            }
            sum += 1000u;
        default:
            sum += 3u;
        }
        if ((sum & 0xffu) == 0x80u && i > 3u || sum > 9000u && v > 50u) {
            break;
        }
        sum = sum * 2u + 1u;
    }
    return sum;
}

void main()
{
    uint i = gl_GlobalInvocationID.x;
    if (i >= p.n) {
        return;
    }
    uint v = x[i];
    uint a = v;
    uint count = 0u;
    do {
        a = (a & 1u) == 0u ? a / 2u : 3u * a + 1u;
        count++;
    } while (a > 1u && count < p.limit);
    int s = int(v) - 40;
    switch (s) {
    case -40: count += 1000000u; break;
    case -1: count += 2000000u; break;
    case 0: break;
    default: count += s < 0 ? 3000000u : 4000000u;
    }
    y[i] = count + 7u * first_factor(v) + 31u * steps(v);
}
