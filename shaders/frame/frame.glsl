// Parameters of frames, and where a place between pixels lies.
#ifndef ONEPOOL_FRAME_GLSL
#define ONEPOOL_FRAME_GLSL

SPEC(1, uint, LINEAR, 0u);       // whether places between pixels are interpolated
SPEC(2, uint, COMPONENTS, 3u);   // components that are read or written: 1 or 3
SPEC(3, uint, MEMORY1, 0u);      // the memory of component 1
SPEC(4, uint, MEMORY2, 0u);      // the memory of component 2
SPEC(5, uint, STEP0, 1u);        // bytes between samples of component 0
SPEC(6, uint, STEP1, 1u);        // bytes between samples of components 1 and 2
SPEC(7, uint, ACROSS, 0u);       // pixels for a sample of components 1 and 2, as powers of two
SPEC(8, uint, DOWN, 0u);
SPEC(9, uint, WIDE, 0u);         // whether samples are 10 bits in the upper bits of two bytes
SPEC(10, int, ALPHA, 0);         // bytes from component 0 to alpha; 0 where there is none
SPEC(11, uint, CHANNELS, 3u);    // channels of the tensor
SPEC(12, uint, LAST, 0u);        // whether channels are the last dimension

layout(push_constant) uniform Params
{
    uint x, y, w, h;    // the rectangle of the frame
    uint tw, th;        // sizes of the tensor
    uint base[3];       // of each component, the byte of the frame's first sample in its memory
    uint stride[3];     // of each component, bytes from row to row
    int rows[9];        // the colour matrix
    int bias[3];
    float scale[4];     // of each channel of the tensor
    float offset[4];
} p;

const uint WEIGHT_ONE = 16384u;  // rust: the sum of the weights of two neighbouring pixels
const int WEIGHT_BITS = 14;

// The two pixels around a place, and the weight of the second one.
struct Tap
{
    uint first, second, weight;
};

// The place of pixel `o` of `size` among `len` pixels. Sizes are at most 2^14.
Tap tap(bool linear, uint o, uint size, uint len)
{
    Tap t;
    uint twice = (2u * o + 1u) * len;
    uint unit = 2u * size;
    if (!linear) {
        t.first = twice / unit;
        t.second = t.first;
        t.weight = 0u;
        return t;
    }
    uint at = twice > size ? twice - size : 0u;
    t.first = at / unit;
    t.second = min(t.first + 1u, len - 1u);
    t.weight = ((at - t.first * unit) * WEIGHT_ONE + size) / unit;
    return t;
}

// Two values of at most 16 bits weighed, with `drop` fewer places after the binary point than their products have.
int between(int a, int b, uint weight, int drop)
{
    return (a * int(WEIGHT_ONE - weight) + b * int(weight) + (1 << (drop - 1))) >> drop;
}

#endif
