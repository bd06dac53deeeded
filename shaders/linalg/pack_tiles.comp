// Packs weights that are not known before the run, as ops/pack.rs packs those that are:
// dst[group][channel / tile][ic][kd][kh][kw][tile], zeros after the last channel. Of matrices channels are columns, and input
// channels are rows.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, TAPS, 1u);    // whether an input channel has several taps

layout(set = 0, binding = 0, std430) readonly buffer W { T w[]; };
layout(set = 0, binding = 1, std430) writeonly buffer Dst { T dst[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint tile, oc, ic, kd, kh, kw;
    int first;
    int group_stride, oc_stride, ic_stride, kd_stride, kh_stride, kw_stride;
} p;

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint at = i;
    uint lane = at % p.tile;
    at /= p.tile;
    int from = p.first;
    if (TAPS != 0u) {
        from += int(at % p.kw) * p.kw_stride;
        at /= p.kw;
        from += int(at % p.kh) * p.kh_stride;
        at /= p.kh;
        from += int(at % p.kd) * p.kd_stride;
        at /= p.kd;
    }
    from += int(at % p.ic) * p.ic_stride;
    at /= p.ic;
    uint tiles = (p.oc + p.tile - 1u) / p.tile;
    uint channel = (at % tiles) * p.tile + lane;
    from += int(at / tiles) * p.group_stride + int(channel) * p.oc_stride;
    dst[i] = channel < p.oc ? w[from] : T(0.0);
}
