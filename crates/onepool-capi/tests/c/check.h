/* What the test programs have in common. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onepool.h"

/* Ends the program with a message unless `condition` holds. */
#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            fprintf(stderr, "the last error: %s\n", onepool_last_error());                   \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

#define OK(call) EXPECT(ONEPOOL_OK, call, "")

/* The call ends with `wanted`, and its message has `part` in it. */
#define EXPECT(wanted, call, part)                                                           \
    do {                                                                                     \
        const onepool_status got_ = (call);                                                  \
        if (got_ != (wanted) || (got_ != ONEPOOL_OK && !strstr(onepool_last_error(), part))) { \
            fprintf(stderr, "%s:%d: %s\n  is %s, expected %s with \"%s\"\n  the last error: %s\n", __FILE__, \
                    __LINE__, #call, onepool_status_name(got_), onepool_status_name(wanted), part,  \
                    onepool_last_error());                                                   \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

/* Sizes of the denoiser's input and output; smaller ones for slow tools. */
#ifndef EDGE
#define EDGE 64
#endif
enum { SIDE = EDGE, ELEMENTS = 3 * SIDE * SIDE, BYTES = ELEMENTS * 4 };
static const int64_t DIMS[4] = {1, 3, SIDE, SIDE};

/* Whole pages for `bytes` bytes. */
static inline void *pages(size_t bytes) {
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    CHECK(memory != NULL);
    return memory;
}

/* Something that is no constant. */
static inline void fill(float *values, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / 16777216.0f;
    }
}

/* A session on a device. */
static inline onepool_session *open_session(const char *model, const char *device) {
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    onepool_session *session = NULL;
    OK(onepool_session_open(model, &options, &session));
    return session;
}

/* Memory by reference. */
static inline onepool_memory pointer_to(const char *name, void *data, size_t bytes) {
    onepool_memory memory = ONEPOOL_MEMORY_INIT;
    memory.name = name;
    memory.kind = ONEPOOL_MEMORY_POINTER;
    memory.dtype = ONEPOOL_FLOAT32;
    memory.data = data;
    memory.bytes = bytes;
    memory.dims = DIMS;
    memory.rank = 4;
    return memory;
}

/* What the denoiser makes of `input`, by value. */
static inline void by_value(onepool_session *session, float *input, float *output) {
    onepool_memory value = pointer_to("noisy", input, BYTES);
    value.kind = ONEPOOL_MEMORY_VALUE;
    onepool_binding *binding = NULL;
    OK(onepool_binding_create(session, &value, 1, NULL, 0, 0, &binding));
    OK(onepool_binding_run(binding, NULL));
    OK(onepool_binding_get_output(binding, "clean", output, BYTES));
    OK(onepool_binding_free(binding));
}

/* That no handle is left. */
static inline void nothing_left(void) {
    size_t count = 1;
    OK(onepool_live_handles(&count));
    CHECK(count == 0);
}

#endif
