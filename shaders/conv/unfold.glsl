// The parameters of convolutions as products; ops/conv/device.rs fills them.
#ifndef ONEPOOL_UNFOLD_GLSL
#define ONEPOOL_UNFOLD_GLSL

#include "window.glsl"

layout(push_constant) uniform Params
{
    OUTPUT_3D
    uint oc, groups;    // output channels of a group, groups
    uint ic;            // input channels of a group
    WINDOW_3D(uint)
    uint yc, yd, yh, yw;  // strides in the output of channels, planes, rows, elements
    uint y_first;       // where the output begins
    float act_a, act_b;
} p;

#endif
