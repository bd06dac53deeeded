// Rotates pairs of elements of every vector by the angle of its position, or none; elements after the
// rotated ones are copied. The vectors may go to the rows of a cache that their positions tell.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

// Which row of the tables a vector takes.
// enum: Positions
#define POSITIONS_ROWS 0u   // its own: one row for each element of the batch and place in the sequence
#define POSITIONS_EACH 1u   // the position given for it
#define POSITIONS_FROM 2u   // the given number and its place
#define POSITIONS_LAST 3u   // so that the last of each sequence takes the given number
#define POSITIONS_PLACE 4u  // its place in the sequence

LOCAL_SIZE(0, 64);
SPEC(1, uint, INTERLEAVED, 0u);  // whether a pair is two neighbours, not one of each half
SPEC(2, uint, POSITIONS, 0u);
SPEC(3, uint, WORDS, 2u);        // words of one position
SPEC(4, uint, APPEND, 0u);       // whether positions tell the row that is written

layout(set = 0, binding = 0, std430) readonly buffer X { T x[]; };
layout(set = 0, binding = 1, std430) readonly buffer Cos { T cosines[]; };
layout(set = 0, binding = 2, std430) readonly buffer Sin { T sines[]; };
layout(set = 0, binding = 3, std430) readonly buffer Ids { int ids[]; };
layout(set = 0, binding = 4, std430) writeonly buffer Y { T y[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint heads, len, head;
    uint rotated;        // elements of a vector that are
    uint rows;           // of the tables
    uint x_first, x_batch, x_head, x_row;
    uint y_first, y_batch, y_head, y_row;
    uint y_rows;         // that may be written
} p;

void main()
{
    uint id = linear_id();
    if (id >= p.n) {
        return;
    }
    uint e = id % p.head;
    uint rest = id / p.head;
    uint h = rest % p.heads;
    rest /= p.heads;
    uint i = rest % p.len;
    uint b = rest / p.len;
    uint from = p.x_first + b * p.x_batch + h * p.x_head + i * p.x_row;
    int at = int(b * p.len + i);
    if (POSITIONS == POSITIONS_EACH) {
        at = ids[(b * p.len + i) * WORDS];
    } else if (POSITIONS == POSITIONS_FROM) {
        at = ids[0] + int(i);
    } else if (POSITIONS == POSITIONS_LAST) {
        at = ids[b * WORDS] - int(p.len - 1u) + int(i);
    } else if (POSITIONS == POSITIONS_PLACE) {
        at = int(i);
    }
    uint to = APPEND != 0u ? uint(at) : i;
    if (to >= p.y_rows) {
        return;
    }
    float v = float(x[from + e]);
    if (e < p.rotated) {
        at = clamp(at, 0, int(p.rows) - 1);
        uint pairs = p.rotated / 2u;
        uint pair = INTERLEAVED != 0u ? e / 2u : e % pairs;
        bool second = INTERLEAVED != 0u ? (e & 1u) != 0u : e >= pairs;
        uint partner = INTERLEAVED != 0u ? (e ^ 1u) : (second ? e - pairs : e + pairs);
        float c = float(cosines[uint(at) * pairs + pair]);
        float s = float(sines[uint(at) * pairs + pair]);
        float w = float(x[from + partner]);
        v = second ? s * w + c * v : c * v - s * w;
    }
    y[p.y_first + b * p.y_batch + h * p.y_head + to * p.y_row + e] = T(v);
}
