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

// A window whose taps, stride and dilation along rows are constants of the kernel; it repeats them `kx` times.
// group: RowWindow3d window  input taps strides dilations begins
#define ROW_WINDOW_3D  \
    int id, ih, iw;    \
    uint kd, kh, kx;   \
    int sd, sh;        \
    int dd, dh;        \
    int pd, ph, pw;

// A window of constants.
// group: PaddedPlane plane  input begins
#define PADDED_PLANE  \
    int ih, iw;       \
    int ph, pw;

// Padding at the end.
// group: WindowEnds3d ends  padding
#define WINDOW_ENDS_3D  \
    int qd, qh, qw;

// group: WindowEnds2d ends  padding
#define WINDOW_ENDS_2D  \
    int qh, qw;

// Sizes of the output, innermost first.
// group: Output3d output  sizes
#define OUTPUT_3D  \
    uint ow, oh, od;

// group: Output2d output  sizes
#define OUTPUT_2D  \
    uint ow, oh;

#endif
