// Products of matrices of bytes less their zero points: `sum (a - za) (b - zb)` by `sum a b`, the sums of the
// rows and the zero points. An invocation computes ROWS x 4 elements; 16 bytes of a row are one load.
// variant: i32_r4      T=i32 ROWS=4
// variant: i32_r1      T=i32 ROWS=1
// variant: b8_r4       T=u8 ROWS=4 BYTES EXT_STORAGE8
// variant: b8_r1       T=u8 ROWS=1 BYTES EXT_STORAGE8
// variant: i32_r4_dot  T=i32 ROWS=4 DOT
// variant: i32_r1_dot  T=i32 ROWS=1 DOT
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
#include "quotient.glsl"

LOCAL_SIZE(0, 64);
// What has a bias.
// enum: Biased
#define BIASED_NOTHING 0u  // nothing
#define BIASED_ROWS 1u     // every row
#define BIASED_COLUMNS 2u  // every column

SPEC(1, uint, BIASED, 0u);

layout(set = 0, binding = 0, std430) readonly buffer A { uvec4 a[]; };
layout(set = 0, binding = 1, std430) readonly buffer B { uvec4 b[]; };
layout(set = 0, binding = 2, std430) readonly buffer TermsA { uvec4 a_terms[]; };
layout(set = 0, binding = 3, std430) readonly buffer TermsB { uvec4 b_terms[]; };
layout(set = 0, binding = 4, std430) readonly buffer C { int bias[]; };
layout(set = 0, binding = 5, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;                     // invocations
    uint rows, cols, depth;     // of one product
    uint blocks;                // of 16 bytes
    uint a_div, a_mod;          // product i reads matrix i / a_div % a_mod of A
    uint b_div, b_mod;
    int low, high;              // of the output's bytes
} p;

#ifdef DOT
// OpSDot of SPV_KHR_integer_dot_product on words of four signed bytes.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int signed_dot(uint x, uint y, spirv_literal int packed);
#endif

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
    [[unroll]] for (uint r = 0u; r < uint(ROWS); ++r) {
        [[unroll]] for (uint c = 0u; c < 4u; ++c) {
            sums[r][c] = 0;
        }
    }
    for (uint k = 0u; k < p.blocks; ++k) {
        uvec4 left[ROWS];
        uvec4 right[4];
        // What is read twice after the end is not written.
        [[unroll]] for (uint r = 0u; r < uint(ROWS); ++r) {
            left[r] = a[a_at + min(row + r, p.rows - 1u)];
        }
        [[unroll]] for (uint c = 0u; c < 4u; ++c) {
            right[c] = b[b_at + min(col + c, p.cols - 1u)];
        }
        a_at += p.rows;
        b_at += p.cols;
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
                uvec4 ta = a_terms[a_matrix * p.rows + row + r];
                uvec4 tb = b_terms[b_matrix * p.cols + col + c];
                int za = int(ta.y);
                int zb = int(tb.y);
                int sum = sums[r][c] - zb * int(ta.x) - za * int(tb.x) + int(p.depth) * za * zb;
                uint at = (product * p.rows + row + r) * p.cols + col + c;
#ifdef BYTES
                if (BIASED == BIASED_ROWS) {
                    sum += bias[a_matrix * p.rows + row + r];
                } else if (BIASED == BIASED_COLUMNS) {
                    sum += bias[col + c];
                }
                // Rounded after each step, as the host does.
                precise float both = uintBitsToFloat(ta.z) * uintBitsToFloat(tb.z);
                precise float v = float(sum) * quotient(both, uintBitsToFloat(ta.w));
                int whole = int(clamp(roundEven(v), -65536.0, 65536.0)) + int(tb.w);
                y[at] = T(uint(isnan(v) ? 0 : clamp(whole, p.low, p.high)) & 0xffu);
#else
                y[at] = sum;
#endif
            }
        }
    }
}
