// Teams of TEAM invocations, a power of two, of which each does one vector that it holds. All teams of a work-group call the
// functions together. Declare TEAM before.
#ifndef ONEPOOL_TEAM_GLSL
#define ONEPOOL_TEAM_GLSL

const uint HELD = 4u;           // rust: vectors of four elements that an invocation holds
const uint MOST_LANES = 1024u;  // rust: the most invocations of a work-group

shared float parts[MOST_LANES];

// The largest value of the team, or the sum of all.
float over_team(bool largest, float v)
{
    uint t = gl_LocalInvocationIndex;
    uint lane = t % TEAM;
    parts[t] = v;
    barrier();
    for (uint step = TEAM / 2u; step > 0u; step /= 2u) {
        if (lane < step) {
            float other = parts[t + step];
            parts[t] = largest ? max(parts[t], other) : parts[t] + other;
        }
        barrier();
    }
    float all = parts[t - lane];
    // The parts are reused.
    barrier();
    return all;
}

// The sum of all elements of the team.
float total(vec4 v)
{
    return over_team(false, (v.x + v.y) + (v.z + v.w));
}

#endif
