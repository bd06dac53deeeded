// Products of matrices of bytes less their zero points: `sum (x - zx) (w - zw)` by `sum x w`, the sums of both operands'
// lines and the zero points. An invocation computes ROWS x 4 elements; 16 bytes of a line are one load. The sums of the
// lines of W are given, those of X are made where W's zero points ask for them.
// variant: i32_r4      T=i32 ROWS=4 EXT_STORAGE8
// variant: i32_r1      T=i32 ROWS=1 EXT_STORAGE8
// variant: f32_r4      T=f32 ROWS=4 FLOATS EXT_STORAGE8
// variant: f32_r1      T=f32 ROWS=1 FLOATS EXT_STORAGE8
// variant: b8_r4       T=u8 ROWS=4 BYTES EXT_STORAGE8
// variant: b8_r1       T=u8 ROWS=1 BYTES EXT_STORAGE8
// variant: i32_r4_dot  T=i32 ROWS=4 DOT EXT_STORAGE8
// variant: i32_r1_dot  T=i32 ROWS=1 DOT EXT_STORAGE8
// variant: f32_r4_dot  T=f32 ROWS=4 DOT FLOATS EXT_STORAGE8
// variant: f32_r1_dot  T=f32 ROWS=1 DOT FLOATS EXT_STORAGE8
// variant: b8_r4_dot   T=u8 ROWS=4 DOT BYTES EXT_STORAGE8
// variant: b8_r1_dot   T=u8 ROWS=1 DOT BYTES EXT_STORAGE8
#version 450
#extension GL_EXT_control_flow_attributes : require
#ifdef DOT
#extension GL_EXT_spirv_intrinsics : require
#endif
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"
#ifdef FLOATS
#include "activation.glsl"
#endif
#ifdef BYTES
#include "quotient.glsl"
#endif

LOCAL_SIZE(0, 64);
// How many parameters there are.
// enum: Count
#define COUNT_NONE 0u  // none
#define COUNT_ONE 1u   // one
#define COUNT_MANY 2u  // one for each line, of one matrix or of all

SPEC(1, uint, W_ROWS, 0u);    // whether the rows are W's, and the columns X's
SPEC(2, uint, A_FLIP, 0u);    // 0x80808080 where the rows' bytes are unsigned still
SPEC(3, uint, X_SIGNED, 0u);  // whether X's zero points are signed bytes
SPEC(4, uint, W_SIGNED, 0u);
SPEC(5, uint, X_ZEROS, 0u);   // a Count
SPEC(6, uint, W_ZEROS, 0u);
SPEC(7, uint, SUMMED, 0u);    // whether X's lines are summed
#if defined(FLOATS) || defined(BYTES)
SPEC(8, uint, X_SCALES, 0u);  // a Count
SPEC(9, uint, W_SCALES, 0u);
SPEC(10, uint, BIASED, 0u);   // whether there is a bias for each line of W
#endif
#ifdef FLOATS
SPEC(11, uint, ACTIVATION, 0u);
#endif
#ifdef BYTES
SPEC(12, uint, Y_SIGNED, 0u);
#endif

layout(set = 0, binding = 0, std430) readonly buffer A { uvec4 a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uvec4 b[]; };
layout(set = 0, binding = 2, std430) readonly buffer SumsW { int w_sums[]; };
layout(set = 0, binding = 3, std430) readonly buffer ZerosX { uint8_t x_zeros[]; };
layout(set = 0, binding = 4, std430) readonly buffer ZerosW { uint8_t w_zeros[]; };
#if defined(FLOATS) || defined(BYTES)
layout(set = 0, binding = 5, std430) readonly buffer ScalesX { float x_scales[]; };
layout(set = 0, binding = 6, std430) readonly buffer ScalesW { float w_scales[]; };
#endif
#ifdef FLOATS
layout(set = 0, binding = 7, std430) readonly buffer C { float bias[]; };
layout(set = 0, binding = 8, std430) writeonly buffer Y { T y[]; };
#elif defined(BYTES)
layout(set = 0, binding = 7, std430) readonly buffer C { int bias[]; };
layout(set = 0, binding = 8, std430) readonly buffer ScaleY { float y_scale[]; };
layout(set = 0, binding = 9, std430) readonly buffer ZeroY { uint8_t y_zero[]; };
layout(set = 0, binding = 10, std430) writeonly buffer Y { T y[]; };
#else
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };
#endif

layout(push_constant) uniform Params
{
    uint n;                     // invocations
    uint rows, cols, depth;     // of one product
    uint blocks;                // of 16 bytes
    uint a_row, a_block;        // strides of the rows' blocks
    uint a_div, a_mod;          // product i reads matrix i / a_div % a_mod of A
    uint b_div, b_mod;
    uint w_sums_at;             // the first of W's sums
    uint x_zeros, w_zeros;      // how many there are
    uint x_scales, w_scales;
    int low, high;              // of the output's bytes
    float act_a, act_b;
} p;

#ifdef DOT
// OpSDot of SPV_KHR_integer_dot_product on words of four signed bytes.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int signed_dot(uint x, uint y, spirv_literal int packed);
#endif

// The sum of 16 signed bytes.
int bytes_sum(uvec4 v)
{
#ifdef DOT
    const uint ones = 0x01010101u;
    return (signed_dot(v.x, ones, 0) + signed_dot(v.y, ones, 0))
        + (signed_dot(v.z, ones, 0) + signed_dot(v.w, ones, 0));
#else
    ivec4 words = ivec4(v);
    ivec4 sums = bitfieldExtract(words, 0, 8) + bitfieldExtract(words, 8, 8) + bitfieldExtract(words, 16, 8)
        + (words >> 24);
    return (sums.x + sums.y) + (sums.z + sums.w);
#endif
}

// The place of the parameter of line `line`.
uint place(uint count, uint line, uint all)
{
    return count == COUNT_MANY ? line % all : 0u;
}

int byte(uint v, bool is_signed)
{
    return is_signed ? bitfieldExtract(int(v), 0, 8) : int(v);
}

// Zero points of bytes that are all signed.
int x_zero(uint line)
{
    int zero = X_ZEROS != COUNT_NONE ? byte(uint(x_zeros[place(X_ZEROS, line, p.x_zeros)]), X_SIGNED != 0u) : 0;
    return X_SIGNED != 0u ? zero : zero - 128;
}

int w_zero(uint line)
{
    int zero = W_ZEROS != COUNT_NONE ? byte(uint(w_zeros[place(W_ZEROS, line, p.w_zeros)]), W_SIGNED != 0u) : 0;
    return W_SIGNED != 0u ? zero : zero - 128;
}

// The element of a sum; the bias is that of line `own` of a matrix.
T element(int sum, uint x_line, uint w_line, uint own)
{
#if defined(FLOATS) || defined(BYTES)
    float x_scale = X_SCALES != COUNT_NONE ? x_scales[place(X_SCALES, x_line, p.x_scales)] : 1.0;
    float w_scale = W_SCALES != COUNT_NONE ? w_scales[place(W_SCALES, w_line, p.w_scales)] : 1.0;
    // Rounded after each step, as the host does.
    precise float both = x_scale * w_scale;
#ifdef FLOATS
    precise float v = float(sum) * both;
    if (BIASED != 0u) {
        precise float more = v + bias[own];
        v = more;
    }
    return activate(v, ACTIVATION, p.act_a, p.act_b);
#else
    if (BIASED != 0u) {
        sum += bias[own];
    }
    precise float v = float(sum) * quotient(both, y_scale[0]);
    int whole = int(clamp(roundEven(v), -65536.0, 65536.0)) + byte(uint(y_zero[0]), Y_SIGNED != 0u);
    return T(uint(isnan(v) ? 0 : clamp(whole, p.low, p.high)) & 0xffu);
#endif
#else
    return sum;
#endif
}

void main()
{
    uint i = linear_id();
    if (i >= p.n) {
        return;
    }
    uint col_tiles = (p.cols + 3u) / 4u;
    uint row_tiles = (p.rows + uint(ROWS) - 1u) / uint(ROWS);
    uint col = i % col_tiles * 4u;
    uint row = i / col_tiles % row_tiles * uint(ROWS);
    uint product = i / col_tiles / row_tiles;
    uint a_matrix = product / p.a_div % p.a_mod;
    uint b_matrix = product / p.b_div % p.b_mod;
    uint a_at = a_matrix * p.rows * p.blocks;
    uint b_at = b_matrix * p.cols * p.blocks;

    int sums[ROWS][4];
    int x_sums[4];
    [[unroll]] for (uint c = 0u; c < 4u; ++c) {
        x_sums[c] = 0;
        [[unroll]] for (uint r = 0u; r < uint(ROWS); ++r) {
            sums[r][c] = 0;
        }
    }
    for (uint k = 0u; k < p.blocks; ++k) {
        uvec4 left[ROWS];
        uvec4 right[4];
        // What is read twice after the end is not written.
        [[unroll]] for (uint r = 0u; r < uint(ROWS); ++r) {
            left[r] = a[a_at + min(row + r, p.rows - 1u) * p.a_row] ^ uvec4(A_FLIP);
        }
        [[unroll]] for (uint c = 0u; c < 4u; ++c) {
            right[c] = b[b_at + min(col + c, p.cols - 1u)];
        }
        a_at += p.a_block;
        b_at += p.cols;
        if (SUMMED != 0u && W_ROWS == 0u) {
            [[unroll]] for (uint r = 0u; r < uint(ROWS); ++r) {
                x_sums[r] += bytes_sum(left[r]);
            }
        } else if (SUMMED != 0u) {
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                x_sums[c] += bytes_sum(right[c]);
            }
        }
#ifdef DOT
        [[unroll]] for (uint r = 0u; r < uint(ROWS); ++r) {
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                [[unroll]] for (uint w = 0u; w < 4u; ++w) {
                    sums[r][c] += signed_dot(left[r][w], right[c][w], 0);
                }
            }
        }
#else
        [[unroll]] for (int byte = 0; byte < 4; ++byte) {
            ivec4 bytes[4];
            [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                bytes[c] = bitfieldExtract(ivec4(right[c]), 8 * byte, 8);
            }
            [[unroll]] for (uint r = 0u; r < uint(ROWS); ++r) {
                ivec4 x = bitfieldExtract(ivec4(left[r]), 8 * byte, 8);
                [[unroll]] for (uint c = 0u; c < 4u; ++c) {
                    ivec4 q = x * bytes[c];
                    sums[r][c] += (q.x + q.y) + (q.z + q.w);
                }
            }
        }
#endif
    }

    [[unroll]] for (uint r = 0u; r < uint(ROWS); ++r) {
        [[unroll]] for (uint c = 0u; c < 4u; ++c) {
            if (row + r < p.rows && col + c < p.cols) {
                uint a_line = a_matrix * p.rows + row + r;
                uint b_line = b_matrix * p.cols + col + c;
                uint x_line = W_ROWS != 0u ? b_line : a_line;
                uint w_line = W_ROWS != 0u ? a_line : b_line;
                int zx = x_zero(x_line);
                int zw = w_zero(w_line);
                int around = zx * (int(p.depth) * zw - w_sums[p.w_sums_at + w_line]);
                if (SUMMED != 0u) {
                    around -= zw * x_sums[W_ROWS != 0u ? c : r];
                }
                uint own = W_ROWS != 0u ? a_line : col + c;
                y[(product * p.rows + row + r) * p.cols + col + c] =
                    element(sums[r][c] + around, x_line, w_line, own);
            }
        }
    }
}
