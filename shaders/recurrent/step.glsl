// What a time step does to sums of gates. Include cell_spec.glsl before, and declare the parameters clip, alpha[6] and
// beta[6] in `p`, and `uint dir`.
#ifndef ONEPOOL_STEP_GLSL
#define ONEPOOL_STEP_GLSL

#include "functions.glsl"

// The gate whose sum is v; `which` is 0 for function f, 1 for g.
float finish(float v, uint which)
{
    uint code = which == 0u ? F0 : G0;
    if (F1 != F0 || G1 != G0) {
        uint other = which == 0u ? F1 : G1;
        code = dir == 0u ? code : other;
    }
    if (CLIPPED != 0u) {
        v = at_most(at_least(v, -p.clip), p.clip);
    }
    uint at = dir * 3u + which;
    return activate(v, code, p.alpha[at], p.beta[at]);
}

// An LSTM's state from the sums of its gates i, o, f and c and the peephole weights of the first three.
float lstm(vec4 sums, vec3 peepholes, inout float c)
{
    float gate_i = finish(sums.x + peepholes.x * c, 0u);
    float gate_f = INPUT_FORGET != 0u ? 1.0 - gate_i : finish(sums.z + peepholes.z * c, 0u);
    c = gate_f * c + gate_i * finish(sums.w, 1u);
    // c itself is not bounded.
    uint code = dir == 0u ? H0 : H1;
    uint at = dir * 3u + 2u;
    return finish(sums.y + peepholes.y * c, 0u) * activate(c, code, p.alpha[at], p.beta[at]);
}

// The state after h and c: `own` is what the gates get from X, `back` what they get from the state, each with its bias. Of
// KIND_GRU_BEFORE the product is that of the scaled state; of KIND_GRU_COMBINED c is the gate z.
float next_state(vec4 own, vec4 back, vec3 peepholes, float h, inout float c)
{
    if (KIND == KIND_RNN) {
        return finish(own.x + back.x, 0u);
    }
    if (KIND == KIND_LSTM) {
        return lstm(own + back, peepholes, c);
    }
    float z = KIND == KIND_GRU_COMBINED ? c : finish(own.x + back.x, 0u);
    float reset = KIND == KIND_GRU ? finish(own.y + back.y, 0u) : 1.0;
    return (1.0 - z) * finish(own.z + reset * back.z, 1u) + z * h;
}

#endif
