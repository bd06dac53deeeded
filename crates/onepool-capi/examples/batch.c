/* Texts that come and go: batch MODEL DEVICE PROMPT... */
#include <stdio.h>
#include <stdlib.h>

#include "onepool.h"

static void check(onepool_status status) {
    if (status != ONEPOOL_OK) {
        fprintf(stderr, "%s: %s\n", onepool_status_name(status), onepool_last_error());
        exit(1);
    }
}

/* Adds a piece to a file in memory. */
static uint32_t tell(void *user, const char *piece, size_t bytes) {
    return fwrite(piece, 1, bytes, user) == bytes ? 0 : 1;
}

/* Texts that go on from `count` prompts, one line each. */
static void all(onepool_generator *generator, char **prompts, size_t count, FILE **lines) {
    onepool_batch *batch = NULL;
    check(onepool_batch_open(generator, NULL, &batch));
    onepool_generate_options options = ONEPOOL_GENERATE_OPTIONS_INIT;
    options.max_tokens = 20;
    options.grammar = "[a-z]{3} [0-9]+";
    options.grammar_kind = ONEPOOL_GRAMMAR_REGEX;
    uint64_t text = 0;
    for (size_t i = 0; i < count; i++) {
        options.text = prompts[i];
        check(onepool_batch_add(batch, &options, tell, lines[i], &text));
    }
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    for (size_t left = count, ended = 0; left > 0; left -= ended) {
        check(onepool_batch_step(batch, &text, &made, 1, &ended)); /* more may be added between steps */
        if (ended > 0) {
            fprintf(stderr, "text %u has %zu tokens\n", (unsigned)text, made.tokens);
        }
    }
    check(onepool_batch_free(batch)); /* the generator is free again */
}

int main(int argc, char **argv) {
    if (argc < 4) {
        return 2;
    }
    const size_t count = (size_t)argc - 3;
    const char *device = argv[2];
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    onepool_generator *generator = NULL;
    check(onepool_generator_open(argv[1], &options, NULL, &generator));
    FILE **lines = calloc(count, sizeof(*lines));
    char **texts = calloc(count, sizeof(*texts));
    size_t *sizes = calloc(count, sizeof(*sizes));
    for (size_t i = 0; i < count; i++) {
        lines[i] = open_memstream(&texts[i], &sizes[i]);
    }
    all(generator, argv + 3, count, lines);
    for (size_t i = 0; i < count; i++) {
        fclose(lines[i]);
        puts(texts[i]);
        free(texts[i]);
    }
    free(lines), free(texts), free(sizes);
    onepool_generator_free(generator);
    return 0;
}
