/* pages MODEL DEVICE: a cache in pages that generators share, forks, and conversations of a batch in files. */
#include "text.h"

enum { PAGES = 48, PAGE_TOKENS = 4 };

static const char FOX[] = "The quick brown fox jumps over the lazy dog";

/* Options of a text that goes on from another one. */
static onepool_generate_options on(void) {
    onepool_generate_options options = hello();
    options.text = NULL;
    return options;
}

/* Steps until no text is left. */
static void drain(onepool_batch *batch) {
    uint64_t ended[4];
    size_t count = 0;
    uint32_t idle = 0;
    for (int steps = 0; idle == 0; steps++) {
        CHECK(steps < 200);
        OK(onepool_batch_step(batch, ended, NULL, 4, &count));
        OK(onepool_batch_is_idle(batch, &idle));
    }
}

/* A text and another one that goes on from its middle are the same, and have the same pages; a file keeps them. */
static void texts(onepool_generator *generator, onepool_generator *second, const char *path) {
    told alone = {0}, first = {0}, fork = {0}, again = {0};
    onepool_generate_options options = hello();
    options.text = FOX;
    OK(onepool_generate(generator, &options, tell, &alone, NULL));
    onepool_batch *batch = NULL;
    OK(onepool_batch_open(generator, NULL, &batch));
    uint64_t text = 9, other = 9, ended = 9;
    OK(onepool_batch_add(batch, &options, tell, &first, &text));
    size_t count = 0, tokens = 0;
    for (int steps = 0; steps < 4; steps++) {
        OK(onepool_batch_step(batch, &ended, NULL, 1, &count));
        CHECK(count == 0);
    }
    OK(onepool_batch_save(batch, text, path));
    const size_t before = first.bytes;
    onepool_generate_options rest = on();
    rest.max_tokens = 16;
    OK(onepool_batch_fork(batch, text, &rest, tell, &fork, &other));
    CHECK(other == text + 1);
    onepool_page_counts pages = ONEPOOL_PAGE_COUNTS_INIT;
    OK(onepool_generator_page_counts(generator, &pages));
    CHECK(pages.shared > 0 && pages.used >= pages.shared);
    drain(batch);
    CHECK(before < first.bytes && strcmp(first.text, alone.text) == 0);
    CHECK(strcmp(fork.text, first.text + before) == 0);
    OK(onepool_generator_page_counts(generator, &pages));
    CHECK(pages.copied > 0);
    OK(onepool_batch_free(batch));
    /* Another generator finds the pages of the file that it has too. */
    OK(onepool_generator_clear_pages(generator));
    OK(onepool_generator_page_counts(generator, &pages));
    CHECK(pages.cached == 0 && pages.free + pages.used == pages.pages);
    OK(onepool_batch_open(second, NULL, &batch));
    OK(onepool_batch_restore(batch, path, &tokens));
    CHECK(tokens >= 2 * PAGE_TOKENS && tokens % PAGE_TOKENS == 0);
    OK(onepool_generator_page_counts(generator, &pages));
    CHECK(pages.cached == tokens / PAGE_TOKENS);
    OK(onepool_batch_add(batch, &options, tell, &again, &text));
    drain(batch);
    onepool_batch_counts counts = ONEPOOL_BATCH_COUNTS_INIT;
    OK(onepool_batch_get_counts(batch, &counts));
    CHECK(counts.reused_tokens > 0 && strcmp(again.text, alone.text) == 0);

    EXPECT(BAD, onepool_batch_fork(batch, 77, &rest, tell, &fork, &other), "77");
    EXPECT(BAD, onepool_batch_fork(batch, text, &options, tell, &fork, &other), "has a prompt");
    EXPECT(BAD, onepool_batch_fork(batch, text, NULL, tell, &fork, &other), "`options`");
    EXPECT(BAD, onepool_batch_fork(batch, text, &rest, NULL, &fork, &other), "`callback`");
    EXPECT(BAD, onepool_batch_fork(batch, text, &rest, tell, &fork, NULL), "`text`");
    EXPECT(BAD, onepool_batch_save(batch, text, path), "text");
    EXPECT(BAD, onepool_batch_save(batch, text, NULL), "`path`");
    EXPECT(BAD, onepool_batch_restore(batch, path, NULL), "`tokens`");
    EXPECT(BAD, onepool_batch_restore(batch, NULL, &tokens), "`path`");
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_batch_restore(batch, "/nowhere", &tokens), "nowhere");
    OK(onepool_batch_free(batch));
    CHECK(remove(path) == 0);
}

/* Opens a model, and says why that fails. */
static void not_opened(const char *model, const char *device, const onepool_generator_options *options,
                       onepool_status status, const char *part) {
    onepool_session_options session = ONEPOOL_SESSION_OPTIONS_INIT;
    session.devices = &device;
    session.device_count = 1;
    onepool_generator *generator = NULL;
    EXPECT(status, onepool_generator_open(model, &session, options, &generator), part);
    CHECK(generator == NULL);
}

static void refused(const char *model, const char *device, onepool_generator *paged) {
    const char *fixed = beside(model, "fixed");
    onepool_generator *plain = open_generator(fixed, device);
    onepool_page_counts counts = ONEPOOL_PAGE_COUNTS_INIT;
    EXPECT(BAD, onepool_generator_page_counts(plain, &counts), "no pages");
    EXPECT(BAD, onepool_generator_clear_pages(plain), "no pages");
    EXPECT(BAD, onepool_generator_page_counts(paged, NULL), "`counts`");
    EXPECT(NO_HANDLE, onepool_generator_clear_pages(NULL), "`generator`");
    onepool_batch *batch = NULL;
    size_t tokens = 0;
    OK(onepool_batch_open(plain, NULL, &batch));
    EXPECT(BAD, onepool_batch_restore(batch, "/nowhere", &tokens), "pages");
    OK(onepool_batch_free(batch));

    onepool_generator_options options = ONEPOOL_GENERATOR_OPTIONS_INIT;
    options.page_tokens = 4;
    not_opened(model, device, &options, BAD, "options.page_tokens");
    options.pages = 4;
    not_opened(beside(model, "appending"), device, &options, ONEPOOL_ERROR_MODEL, "not in pages");
    options.pages_of = paged;
    not_opened(model, device, &options, BAD, "options.pages_of");
    options.pages = 0, options.page_tokens = 0, options.pages_of = plain;
    not_opened(model, device, &options, BAD, "has no pages");
    options.pages_of = NULL;
    onepool_region *region = NULL;
    OK(onepool_region_create(4096, &region));
    options.page_memory = region;
    not_opened(model, device, &options, BAD, "options.page_memory");
    options.pages = PAGES;
    not_opened(model, device, &options, BAD, "the region has");
    options.page_memory = NULL, options.pages = (size_t)1 << 60;
    not_opened(model, device, &options, BAD, "pages");
    OK(onepool_region_free(region));
    OK(onepool_generator_free(plain));
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    onepool_generator_options options = ONEPOOL_GENERATOR_OPTIONS_INIT;
    options.pages = PAGES;
    options.page_tokens = PAGE_TOKENS;
    onepool_generator *generator = open_with(argv[1], argv[2], &options);
    onepool_page_counts pages = ONEPOOL_PAGE_COUNTS_INIT;
    OK(onepool_generator_page_counts(generator, &pages));
    CHECK(pages.pages == PAGES && pages.page_tokens == PAGE_TOKENS && pages.free == PAGES);
    CHECK(pages.region_bytes > PAGES && pages.copied == 0 && pages.evicted == 0);
    OK(onepool_generator_free(generator));
    /* The same in memory of the program's, which the pages keep. */
    onepool_region *region = NULL;
    OK(onepool_region_create(pages.region_bytes, &region));
    options.page_memory = region;
    generator = open_with(argv[1], argv[2], &options);
    OK(onepool_region_free(region));
    onepool_generator_options same = ONEPOOL_GENERATOR_OPTIONS_INIT;
    same.pages_of = generator;
    onepool_generator *second = open_with(argv[1], argv[2], &same);
    char path[4096];
    CHECK(snprintf(path, sizeof(path), "%s-%s.conversation", argv[0], argv[2]) < (int)sizeof(path));
    texts(generator, second, path);
    refused(argv[1], argv[2], generator);
    OK(onepool_generator_free(second));
    OK(onepool_generator_free(generator));
    nothing_left();
    puts("all of pages passed");
    return 0;
}
