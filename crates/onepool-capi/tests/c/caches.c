/* caches MODEL DEVICE: a decoder's caches of keys and values, each one memory that is an input and an output. */
#include "check.h"

enum { ROWS = 32, SIZE = 16, HEADS = 2, CACHES = 4, WORDS = 320, CACHE_BYTES = HEADS * ROWS * SIZE * 4 };
static const char *const PAST[CACHES] = {"past_key_values.0.key", "past_key_values.1.key", "past_key_values.0.value",
                                         "past_key_values.1.value"};
static const char *const PRESENT[CACHES] = {"present.0.key", "present.1.key", "present.0.value", "present.1.value"};
static const int64_t CACHE_DIMS[4] = {1, HEADS, ROWS, SIZE};

/* What models/tiny_llm/expected.json says of "Hello". */
static const int64_t PROMPT[6] = {1, 78, 107, 114, 114, 117};
static const int64_t NEXT[4] = {170, 124, 249, 25};

static onepool_memory memory(const char *name, uint32_t kind, void *data, size_t bytes, const int64_t *dims, size_t rank) {
    onepool_memory made = ONEPOOL_MEMORY_INIT;
    made.name = name;
    made.kind = kind;
    made.data = data;
    made.bytes = bytes;
    made.dims = dims;
    made.rank = rank;
    return made;
}

/* One run of `count` tokens after `before` others; the most likely next one. */
static int64_t next(onepool_session *session, float **caches, const int64_t *tokens, int64_t count, int64_t before) {
    int64_t mask[ROWS] = {0};
    for (int64_t i = 0; i < before + count; i++) {
        mask[i] = 1;
    }
    int64_t ids[8];
    memcpy(ids, tokens, (size_t)count * 8);
    const int64_t id_dims[2] = {1, count}, mask_dims[2] = {1, ROWS};
    onepool_memory in[2] = {
        memory("input_ids", ONEPOOL_MEMORY_VALUE, ids, (size_t)count * 8, id_dims, 2),
        memory("attention_mask", ONEPOOL_MEMORY_VALUE, mask, sizeof(mask), mask_dims, 2),
    };
    onepool_memory out[CACHES];
    for (int i = 0; i < CACHES; i++) {
        out[i] = memory(PRESENT[i], ONEPOOL_MEMORY_POINTER, caches[i], CACHE_BYTES, CACHE_DIMS, 4);
        out[i].updates = PAST[i];
    }
    onepool_binding *binding = NULL;
    OK(onepool_binding_create(session, in, 2, out, CACHES, 0, &binding));
    OK(onepool_binding_run(binding, NULL));
    float *logits = malloc((size_t)count * WORDS * 4);
    OK(onepool_binding_get_output(binding, "logits", logits, (size_t)count * WORDS * 4));
    const float *last = logits + (count - 1) * WORDS;
    int64_t best = 0;
    for (int64_t i = 1; i < WORDS; i++) {
        best = last[i] > last[best] ? i : best;
    }
    free(logits);
    OK(onepool_binding_free(binding));
    return best;
}

static int is_zero(const float *row) {
    int zero = 1;
    for (int i = 0; i < SIZE; i++) {
        zero &= row[i] == 0.0f;
    }
    return zero;
}

static void refused(onepool_session *session, float *cache) {
    onepool_binding *binding = NULL;
    onepool_memory in = memory(PAST[0], ONEPOOL_MEMORY_POINTER, cache, CACHE_BYTES, CACHE_DIMS, 4), out = in;
    in.updates = "logits";
    EXPECT(ONEPOOL_ERROR_INVALID_ARGUMENT, onepool_binding_create(session, &in, 1, NULL, 0, 0, &binding), "inputs[0].updates");
    in.updates = NULL;
    out.name = PRESENT[0];
    out.updates = PAST[0];
    EXPECT(ONEPOOL_ERROR_INVALID_ARGUMENT, onepool_binding_create(session, &in, 1, &out, 1, 0, &binding),
           "outputs[0].updates");
    out.updates = "nothing";
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_create(session, NULL, 0, &out, 1, 0, &binding), "nothing");
    CHECK(binding == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    onepool_session *session = open_session(argv[1], argv[2]);
    float *caches[CACHES];
    for (int i = 0; i < CACHES; i++) {
        caches[i] = pages(CACHE_BYTES);
        memset(caches[i], 0, CACHE_BYTES);
    }
    int64_t token = next(session, caches, PROMPT, 6, 0);
    for (int64_t step = 0; step < 4; step++) {
        CHECK(token == NEXT[step]);
        const int64_t rows = 6 + step;
        for (int i = 0; i < CACHES; i++) {
            for (int64_t row = 0; row < HEADS * ROWS; row++) {
                CHECK(is_zero(caches[i] + row * SIZE) == (row % ROWS >= rows));
            }
        }
        token = next(session, caches, &token, 1, rows);
    }
    refused(session, caches[0]);
    OK(onepool_session_free(session));
    for (int i = 0; i < CACHES; i++) {
        free(caches[i]);
    }
    nothing_left();
    puts("all of caches passed");
    return 0;
}
