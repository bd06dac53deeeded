// New keys and values of tokens without padding go to their rows of a cache in pages; queries and keys are rotated by the
// angle of their positions. Every number that the application gives is checked: what is out of range is not written.
// variant: f32  T=f32
// variant: f16  T=f16 EXT_STORAGE16
#version 450
#include "types.glsl"
#include "spec.glsl"
#include "grid.glsl"

LOCAL_SIZE(0, 64);
SPEC(1, uint, INTERLEAVED, 0u);  // whether a pair is two neighbours, not one of each half
SPEC(2, uint, GIVEN, 0u);        // whether the rows of new keys are given
SPEC(3, uint, CAUSAL, 1u);

layout(set = 0, binding = 0, std430) readonly buffer Q { T q[]; };
layout(set = 0, binding = 1, std430) readonly buffer K { T k[]; };
layout(set = 0, binding = 2, std430) readonly buffer V { T v[]; };
layout(set = 0, binding = 3, std430) readonly buffer Ends { int ends[]; };
layout(set = 0, binding = 4, std430) readonly buffer Past { int past[]; };
layout(set = 0, binding = 5, std430) readonly buffer Table { int table[]; };
layout(set = 0, binding = 6, std430) readonly buffer Cos { T cosines[]; };
layout(set = 0, binding = 7, std430) readonly buffer Sin { T sines[]; };
layout(set = 0, binding = 8, std430) readonly buffer Slots { int slots[]; };
layout(set = 0, binding = 9, std430) writeonly buffer Keys { T keys[]; };
layout(set = 0, binding = 10, std430) writeonly buffer Values { T values[]; };
layout(set = 0, binding = 11, std430) writeonly buffer Turned { T turned[]; };
layout(set = 0, binding = 12, std430) writeonly buffer Places { int places[]; };

layout(push_constant) uniform Params
{
    uint n;
    uint queries;         // heads of queries, 0 where they are not rotated
    uint kv_heads, head;
    uint rotated;         // elements of a vector that are
    uint rows;            // of the tables of angles
    uint batch;           // sequences
    uint page;            // rows of a page
    uint pages;           // of a sequence
    uint blocks;          // pages of the caches
    uint q_row, k_row;    // elements of all of a token
    uint k_first, v_first;
} p;

// Element `e` of the vector of queries or keys that begins at `from`, rotated.
float rotated(bool is_query, uint from, uint e, int position)
{
    float own = is_query ? float(q[from + e]) : float(k[from + e]);
    if (e >= p.rotated) {
        return own;
    }
    uint at = uint(clamp(position, 0, int(p.rows) - 1));
    uint pairs = p.rotated / 2u;
    uint pair = INTERLEAVED != 0u ? e / 2u : e % pairs;
    bool second = INTERLEAVED != 0u ? (e & 1u) != 0u : e >= pairs;
    uint partner = INTERLEAVED != 0u ? (e ^ 1u) : (second ? e - pairs : e + pairs);
    float c = float(cosines[at * pairs + pair]);
    float s = float(sines[at * pairs + pair]);
    float other = is_query ? float(q[from + partner]) : float(k[from + partner]);
    return second ? s * other + c * own : c * own - s * other;
}

void main()
{
    uint id = linear_id();
    if (id >= p.n) {
        return;
    }
    uint e = id % p.head;
    uint rest = id / p.head;
    uint heads = p.queries + 2u * p.kv_heads;
    uint h = rest % heads;
    uint token = rest / heads;
    // The first sequence that ends after the token.
    uint sequence = 0u;
    uint high = p.batch;
    while (sequence < high) {
        uint middle = (sequence + high) / 2u;
        if (ends[middle + 1u] > int(token)) {
            high = middle;
        } else {
            sequence = middle + 1u;
        }
    }
    bool inside = sequence < p.batch;
    sequence = min(sequence, p.batch - 1u);
    int room = int(p.pages * p.page);
    int begin = ends[sequence];
    int before = past[sequence];
    int own = int(token) - clamp(begin, 0, 0x20000000);
    inside = inside && begin >= 0 && own >= 0 && before >= 0 && before < room && own < room - before;
    int position = inside ? before + own : 0;
    if (h == 0u && e == 0u) {
        int seen = CAUSAL != 0u ? position + 1 : before + clamp(ends[sequence + 1u] - begin, 0, room);
        places[2u * token] = inside ? min(seen, room) : 0;
        places[2u * token + 1u] = int(sequence);
    }
    if (h < p.queries) {
        uint to = (token * p.queries + h) * p.head + e;
        turned[to] = T(rotated(true, token * p.q_row + h * p.head, e, position));
        return;
    }
    if (!inside) {
        return;
    }
    int slot;
    if (GIVEN != 0u) {
        slot = slots[token];
    } else {
        int page = table[sequence * p.pages + uint(position) / p.page];
        slot = page >= 0 && page < int(p.blocks) ? page * int(p.page) + position % int(p.page) : -1;
    }
    if (slot < 0 || slot >= int(p.blocks * p.page)) {
        return;
    }
    h -= p.queries;
    bool is_key = h < p.kv_heads;
    h -= is_key ? 0u : p.kv_heads;
    uint from = token * p.k_row + h * p.head;
    uint to = (uint(slot) * p.kv_heads + h) * p.head + e;
    if (is_key) {
        keys[to] = T(rotated(false, p.k_first + from, e, position));
    } else {
        values[to] = v[p.v_first + from + e];
    }
}
