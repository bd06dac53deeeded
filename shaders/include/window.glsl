// How a window slides over an input, as members of Params: sizes of the input, taps, strides, dilations and padding at the
// beginning of each axis, outermost first. INT is the type of taps. The build makes a Rust struct of each group.
#ifndef ONEPOOL_WINDOW_GLSL
#define ONEPOOL_WINDOW_GLSL

// group: Window3d window  input taps strides dilations begins
#define WINDOW_3D(INT)  \
    int id, ih, iw;     \
    INT kd, kh, kw;     \
    int sd, sh, sw;     \
    int dd, dh, dw;     \
    int pd, ph, pw;

// group: Window2d window  input taps strides dilations begins
#define WINDOW_2D(INT)  \
    int ih, iw;         \
    INT kh, kw;         \
    int sh, sw;         \
    int dh, dw;         \
    int ph, pw;

#endif
