/* batch MODEL DEVICE: texts that come and go, and what is refused. */
#include "text.h"

enum { TEXTS = 4 };

static const char *const PROMPTS[TEXTS] = {"Hello", "The quick brown fox", "a", "Once upon a time"};
static const size_t TOKENS[TEXTS] = {9, 17, 4, 12};

/* Options for one of the texts. */
static onepool_generate_options option(int i) {
    onepool_generate_options options = hello();
    options.text = PROMPTS[i];
    options.max_tokens = TOKENS[i];
    return options;
}

/* A text of a batch, whose callback tries to use that. */
typedef struct {
    onepool_batch *batch;
    onepool_status added, stepped, asked, counted;
    int calls;
} caller;

static uint32_t call(void *user, const char *piece, size_t bytes) {
    caller *c = user;
    CHECK(piece != NULL && bytes > 0);
    onepool_generate_options options = hello();
    onepool_batch_counts counts = ONEPOOL_BATCH_COUNTS_INIT;
    uint64_t text = 0;
    size_t count = 0;
    uint32_t idle = 0;
    c->added = onepool_batch_add(c->batch, &options, tell, c, &text);
    c->stepped = onepool_batch_step(c->batch, &text, NULL, 1, &count);
    c->asked = onepool_batch_is_idle(c->batch, &idle);
    c->counted = onepool_batch_get_counts(c->batch, &counts);
    c->calls++;
    return 1;
}

/* Two of four texts run at once; one is added while others run. They are what they are alone. */
static void texts(onepool_generator *generator) {
    told alone[TEXTS], together[TEXTS];
    memset(alone, 0, sizeof(alone));
    memset(together, 0, sizeof(together));
    for (int i = 0; i < TEXTS; i++) {
        const onepool_generate_options options = option(i);
        OK(onepool_generate(generator, &options, tell, &alone[i], NULL));
    }
    onepool_batch_options wanted = ONEPOOL_BATCH_OPTIONS_INIT;
    wanted.texts = 2;
    wanted.step_tokens = 12;
    onepool_batch *batch = NULL;
    OK(onepool_batch_open(generator, &wanted, &batch));
    uint64_t text = 99, ended[TEXTS];
    for (int i = 0; i < TEXTS - 1; i++) {
        const onepool_generate_options options = option(i);
        OK(onepool_batch_add(batch, &options, tell, &together[i], &text));
        CHECK(text == (uint64_t)i);
    }
    onepool_generated made[TEXTS];
    made[0] = (onepool_generated)ONEPOOL_GENERATED_INIT;
    size_t count = 0, all = 0, steps = 0;
    uint32_t idle = 0;
    while (idle == 0) {
        if (steps == 3) {
            const onepool_generate_options options = option(TEXTS - 1);
            OK(onepool_batch_add(batch, &options, tell, &together[TEXTS - 1], &text));
        }
        OK(onepool_batch_step(batch, ended, made, TEXTS, &count));
        for (size_t i = 0; i < count; i++) {
            CHECK(ended[i] < TEXTS && made[i].struct_size == sizeof(made[i]));
            CHECK(made[i].tokens == TOKENS[ended[i]] && made[i].finish == ONEPOOL_FINISH_LENGTH);
        }
        all += count;
        CHECK(++steps < 500);
        OK(onepool_batch_is_idle(batch, &idle));
    }
    CHECK(all == TEXTS && steps > 3);
    for (int i = 0; i < TEXTS; i++) {
        CHECK(strcmp(alone[i].text, together[i].text) == 0);
    }
    onepool_batch_counts counts = ONEPOOL_BATCH_COUNTS_INIT;
    OK(onepool_batch_get_counts(batch, &counts));
    CHECK(counts.steps > 10 && counts.tokens > 40 && counts.most_texts == 2 && counts.preempted == 0);
    OK(onepool_batch_step(batch, ended, made, TEXTS, &count));
    CHECK(count == 0);
    OK(onepool_batch_free(batch));
}

/* Texts end by a token and by their callback, and are told of one at a time. */
static void ends(onepool_generator *generator) {
    onepool_batch *batch = NULL;
    OK(onepool_batch_open(generator, NULL, &batch));
    onepool_generate_options options = hello();
    OK(onepool_cancel_create(&options.cancel));
    told cancelled = {0};
    uint64_t text[3] = {0}, ended = 9;
    OK(onepool_batch_add(batch, &options, tell, &cancelled, &text[0]));
    OK(onepool_cancel_trigger(options.cancel));
    OK(onepool_cancel_free(options.cancel));
    options = hello();
    caller inside = {batch, ONEPOOL_OK, ONEPOOL_OK, ONEPOOL_OK, ONEPOOL_OK, 0};
    OK(onepool_batch_add(batch, &options, call, &inside, &text[1]));
    told held = {0};
    options.grammar = "(ab){3}";
    options.grammar_kind = ONEPOOL_GRAMMAR_REGEX;
    OK(onepool_batch_add(batch, &options, tell, &held, &text[2]));
    /* The generator is in use meanwhile, also where its handle is another call's. */
    EXPECT(ONEPOOL_ERROR_BUSY, onepool_generate(generator, &options, tell, &held, NULL), "`generator`");
    onepool_batch *second = NULL;
    EXPECT(ONEPOOL_ERROR_BUSY, onepool_batch_open(generator, NULL, &second), "`generator`");
    uint32_t finish[3] = {99, 99, 99}, idle = 0;
    size_t count = 0;
    for (int steps = 0; idle == 0; steps++) {
        onepool_generated made = ONEPOOL_GENERATED_INIT;
        CHECK(steps < 100);
        OK(onepool_batch_step(batch, &ended, &made, 1, &count));
        CHECK(count <= 1);
        if (count == 1) {
            CHECK(ended < 3 && finish[ended] == 99);
            finish[ended] = made.finish;
        }
        OK(onepool_batch_is_idle(batch, &idle));
    }
    CHECK(finish[text[0]] == ONEPOOL_FINISH_CANCELLED && cancelled.calls == 0);
    CHECK(finish[text[1]] == ONEPOOL_FINISH_CANCELLED && inside.calls == 1);
    CHECK(inside.added == ONEPOOL_ERROR_BUSY && inside.stepped == ONEPOOL_ERROR_BUSY);
    CHECK(inside.asked == ONEPOOL_ERROR_BUSY && inside.counted == ONEPOOL_ERROR_BUSY);
    CHECK(finish[text[2]] == ONEPOOL_FINISH_GRAMMAR && strcmp(held.text, "ababab") == 0);
    /* One that is freed in the middle leaves the generator free. */
    options = hello();
    told dropped = {0}, after = {0};
    OK(onepool_batch_add(batch, &options, tell, &dropped, &text[0]));
    OK(onepool_batch_step(batch, &ended, NULL, 1, &count));
    OK(onepool_batch_free(batch));
    OK(onepool_generate(generator, &options, tell, &after, NULL));
    CHECK(after.bytes > dropped.bytes);
}

static void refused(onepool_generator *generator, const char *model, const char *device) {
    onepool_batch *batch = NULL;
    onepool_batch_options wanted = ONEPOOL_BATCH_OPTIONS_INIT;
    wanted.texts = 65537;
    EXPECT(BAD, onepool_batch_open(generator, &wanted, &batch), "texts is 65537");
    wanted.struct_size = 8;
    EXPECT(BAD, onepool_batch_open(generator, &wanted, &batch), "struct_size");
    EXPECT(BAD, onepool_batch_open(generator, NULL, NULL), "`batch`");
    EXPECT(NO_HANDLE, onepool_batch_open(NULL, NULL, &batch), "`generator` is null");
    onepool_generator *encoder = open_generator(beside(model, "../tiny_seq2seq/text"), device);
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_batch_open(encoder, NULL, &batch), "come and go");
    OK(onepool_generator_free(encoder));
    CHECK(batch == NULL);
    OK(onepool_batch_open(generator, NULL, &batch));
    onepool_generate_options options = hello();
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    onepool_batch_counts counts = ONEPOOL_BATCH_COUNTS_INIT;
    told none = {0};
    uint64_t text = 0;
    size_t count = 0;
    uint32_t idle = 0;
    EXPECT(BAD, onepool_batch_add(batch, NULL, tell, &none, &text), "`options`");
    EXPECT(BAD, onepool_batch_add(batch, &options, NULL, &none, &text), "`callback`");
    EXPECT(BAD, onepool_batch_add(batch, &options, tell, &none, NULL), "`text`");
    options.text = NULL;
    EXPECT(BAD, onepool_batch_add(batch, &options, tell, &none, &text), "one prompt");
    const uint32_t unknown = 4000000000u;
    options = hello();
    options.text = NULL, options.tokens = &unknown, options.token_count = 1;
    EXPECT(BAD, onepool_batch_add(batch, &options, tell, &none, &text), "4000000000");
    options = hello();
    options.grammar = "(", options.grammar_kind = ONEPOOL_GRAMMAR_REGEX;
    EXPECT(BAD, onepool_batch_add(batch, &options, tell, &none, &text), "the grammar: ");
    EXPECT(BAD, onepool_batch_step(batch, &text, &made, 0, &count), "`room`");
    EXPECT(BAD, onepool_batch_step(batch, NULL, &made, 1, &count), "`texts`");
    EXPECT(BAD, onepool_batch_step(batch, &text, &made, 1, NULL), "`count`");
    made.struct_size = 8;
    EXPECT(BAD, onepool_batch_step(batch, &text, &made, 1, &count), "struct_size");
    EXPECT(BAD, onepool_batch_is_idle(batch, NULL), "`idle`");
    EXPECT(BAD, onepool_batch_get_counts(batch, NULL), "`counts`");
    counts.struct_size = 0;
    EXPECT(BAD, onepool_batch_get_counts(batch, &counts), "struct_size");
    OK(onepool_batch_is_idle(batch, &idle));
    CHECK(idle == 1 && none.calls == 0);
    OK(onepool_batch_free(batch));
    options = hello();
    counts.struct_size = sizeof(counts);
    EXPECT(NO_HANDLE, onepool_batch_free(batch), "was freed");
    EXPECT(NO_HANDLE, onepool_batch_add(batch, &options, tell, &none, &text), "was freed");
    EXPECT(NO_HANDLE, onepool_batch_step(batch, &text, NULL, 1, &count), "was freed");
    EXPECT(NO_HANDLE, onepool_batch_is_idle(batch, &idle), "was freed");
    EXPECT(NO_HANDLE, onepool_batch_get_counts((onepool_batch *)generator, &counts), "onepool_generator");
    OK(onepool_batch_free(NULL));
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    onepool_generator *generator = open_generator(argv[1], argv[2]);
    texts(generator);
    ends(generator);
    refused(generator, argv[1], argv[2]);
    /* A batch keeps what it needs of its generator. */
    onepool_batch *batch = NULL;
    OK(onepool_batch_open(generator, NULL, &batch));
    OK(onepool_generator_free(generator));
    told last = {0};
    onepool_generate_options options = hello();
    uint64_t text = 0;
    size_t count = 0;
    OK(onepool_batch_add(batch, &options, tell, &last, &text));
    while (count == 0) {
        OK(onepool_batch_step(batch, &text, NULL, 1, &count));
    }
    CHECK(last.calls > 5);
    OK(onepool_batch_free(batch));
    nothing_left();
    puts("all of batch passed");
    return 0;
}
