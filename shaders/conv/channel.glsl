// What the elements of an output channel have in common: its bias, and with SLOPED the factor of what is below 0, as PRelu has
// it. Include it after BIASED and `bias`, which has the biases of all channels and then their slopes.
#ifndef ONEPOOL_CHANNEL_GLSL
#define ONEPOOL_CHANNEL_GLSL

const uint SLOPED = 2u;  // rust: what BIASED is where there are slopes; ACTIVATION is LeakyRelu there

float bias_of(uint channel)
{
    return BIASED != 0u ? float(bias[channel]) : 0.0;
}

// The first number of the activation, of one of so many channels; without slopes it is `a`.
float slope_of(uint channel, uint channels, float a)
{
    return BIASED == SLOPED ? float(bias[channels + channel]) : a;
}

#endif
