// Cooperative matrices of 16 x 16 x 16 by plain arithmetic of 32 neighbouring invocations, to test kernels on devices
// without them. Factors are read from `tile`, of words of TILE_HALVES elements of float16, where they are multiplied: nothing
// may write there before.
#ifndef ONEPOOL_PLAIN_MATRIX_GLSL
#define ONEPOOL_PLAIN_MATRIX_GLSL

#define LANES 32u
#define LANE (gl_LocalInvocationIndex % 32u)
#define SUBGROUP (gl_LocalInvocationIndex / 32u)
#define APART false
#define LEFT Left
#define RIGHT Right
#define SUMS mat2x4
#define NO_SUMS mat2x4(0.0)
#define SUMS_OF(value) mat2x4(vec4(value), vec4(value))
#define PRODUCTS(left, right) matrixCompMult(left, right)
#define ADD_ROWS(left, sums) with_rows(left, sums)
#define AT_MOST(element, most) all(lessThanEqual(element, vec4(most)))
#define ROW_MAJOR 0u
#define COLUMN_MAJOR 1u
#define coopMatLoad(matrix, from, first, stride, order) fetch_matrix(matrix, first, stride, order)
#define coopMatMulAdd(left, right, sums) multiplied(left, right, sums)
#define coopMatStore(sums, to, first, stride, order) keep(sums, first, stride)

// The first element of a factor, and those from one element to the next along k and across.
struct Left { uvec3 at; };
struct Right { uvec3 at; };

void fetch_matrix(out Left matrix, uint first, uint stride, uint order)
{
    uint far = stride * TILE_HALVES;
    matrix.at = uvec3(first * TILE_HALVES, order == ROW_MAJOR ? uvec2(1u, far) : uvec2(far, 1u));
}

void fetch_matrix(out Right matrix, uint first, uint stride, uint order)
{
    uint far = stride * TILE_HALVES;
    matrix.at = uvec3(first * TILE_HALVES, order == ROW_MAJOR ? uvec2(far, 1u) : uvec2(1u, far));
}

float plain_half(uint i)
{
    vec2 both = unpackHalf2x16(tile[i / TILE_HALVES][i % TILE_HALVES / 2u]);
    return i % 2u == 0u ? both.x : both.y;
}

// Half a row of sums for every invocation.
mat2x4 multiplied(Left left, Right right, mat2x4 sums)
{
    for (uint c = 0u; c < 8u; ++c) {
        for (uint k = 0u; k < 16u; ++k) {
            float a = plain_half(left.at.x + k * left.at.y + LANE / 2u * left.at.z);
            float b = plain_half(right.at.x + k * right.at.y + (LANE % 2u * 8u + c) * right.at.z);
            sums[c / 4u][c % 4u] += a * b;
        }
    }
    return sums;
}

// Which word of `tile`, and which part of it, has float32 number `i` from word `first` on.
uvec2 place_of(uint first, uint i)
{
    return uvec2(first + i / (TILE_HALVES / 2u), i % (TILE_HALVES / 2u));
}

void keep(mat2x4 sums, uint first, uint stride)
{
    uint line = LANE / 2u * stride * (TILE_HALVES / 2u) + LANE % 2u * 8u;
    for (uint c = 0u; c < 8u; ++c) {
        uvec2 at = place_of(first, line + c);
        tile[at.x][at.y] = floatBitsToUint(sums[c / 4u][c % 4u]);
    }
}

void fetch_matrix(out mat2x4 sums, uint first, uint stride, uint order)
{
    uint line = LANE / 2u * stride * (TILE_HALVES / 2u) + LANE % 2u * 8u;
    for (uint c = 0u; c < 8u; ++c) {
        uvec2 at = place_of(first, line + c);
        sums[c / 4u][c % 4u] = uintBitsToFloat(tile[at.x][at.y]);
    }
}

// Half a row of every invocation, two elements at a time.
void store_halves(mat2x4 sums, uint first, uint stride)
{
    const uint PAIRS = TILE_HALVES / 2u;
    uint line = (first + LANE / 2u * stride) * PAIRS + LANE % 2u * 4u;
    for (uint c = 0u; c < 4u; ++c) {
        tile[(line + c) / PAIRS][(line + c) % PAIRS] =
            packHalf2x16(vec2(sums[c / 2u][c % 2u * 2u], sums[c / 2u][c % 2u * 2u + 1u]));
    }
}

mat2x4 with_rows(Left left, mat2x4 sums)
{
    float total = 0.0;
    for (uint k = 0u; k < 16u; ++k) {
        total += plain_half(left.at.x + k * left.at.y + LANE / 2u * left.at.z);
    }
    return sums + mat2x4(vec4(total), vec4(total));
}

// The invocations wait for one another, so all of the work-group are asked.
shared uint agreed;
bool all_of_subgroup(bool yes)
{
    barrier();
    agreed = 1u;
    barrier();
    if (!yes) {
        agreed = 0u;
    }
    barrier();
    return agreed != 0u;
}

#endif
