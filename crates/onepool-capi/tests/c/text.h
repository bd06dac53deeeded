/* What the test programs of text have in common. */
#ifndef TEXT_H
#define TEXT_H

#include "check.h"

#define BAD ONEPOOL_ERROR_INVALID_ARGUMENT
#define NO_HANDLE ONEPOOL_ERROR_INVALID_HANDLE

typedef struct {
    char text[4096];
    size_t bytes;
    int calls, most;
    onepool_generator *generator;
    onepool_status again;
} told;

static inline uint32_t tell(void *user, const char *piece, size_t bytes) {
    told *t = user;
    CHECK(bytes > 0 && t->bytes + bytes < sizeof(t->text));
    memcpy(t->text + t->bytes, piece, bytes);
    t->bytes += bytes;
    t->calls++;
    if (t->generator) {
        size_t count = 0;
        onepool_generate_options options = ONEPOOL_GENERATE_OPTIONS_INIT;
        options.text = "Hello";
        t->again = onepool_generator_tokens(t->generator, &options, NULL, 0, &count);
    }
    return t->most > 0 && t->calls >= t->most;
}

/* Opens a model with options, which may be null. */
static inline onepool_generator *open_with(const char *model, const char *device,
                                           const onepool_generator_options *options) {
    onepool_session_options session = ONEPOOL_SESSION_OPTIONS_INIT;
    session.devices = &device;
    session.device_count = 1;
    onepool_generator *generator = NULL;
    OK(onepool_generator_open(model, &session, options, &generator));
    return generator;
}

static inline onepool_generator *open_generator(const char *model, const char *device) {
    return open_with(model, device, NULL);
}

static inline onepool_generate_options hello(void) {
    onepool_generate_options options = ONEPOOL_GENERATE_OPTIONS_INIT;
    options.text = "Hello";
    options.max_tokens = 20;
    options.ignore_end = 1;
    return options;
}

/* A model beside the folder of `model`. */
static inline const char *beside(const char *model, const char *name) {
    static char path[4096];
    CHECK(snprintf(path, sizeof(path), "%s/../%s", model, name) < (int)sizeof(path));
    return path;
}

#endif
