/* generate MODEL DEVICE: text from a tiny language model, and what is refused. */
#include "check.h"

#define BAD ONEPOOL_ERROR_INVALID_ARGUMENT
#define NO_HANDLE ONEPOOL_ERROR_INVALID_HANDLE

/* What models/tiny_llm/expected.json says of "Hello". */
static const uint32_t PROMPT[6] = {1, 78, 107, 114, 114, 117};

typedef struct {
    char text[4096];
    size_t bytes;
    int calls, most;
    onepool_generator *generator;
    onepool_status again;
} told;

static uint32_t tell(void *user, const char *piece, size_t bytes) {
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

static onepool_generator *open_generator(const char *model, const char *device) {
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    onepool_generator *generator = NULL;
    OK(onepool_generator_open(model, &options, 0, &generator));
    return generator;
}

static onepool_generate_options hello(void) {
    onepool_generate_options options = ONEPOOL_GENERATE_OPTIONS_INIT;
    options.text = "Hello";
    options.max_tokens = 20;
    options.ignore_end = 1;
    return options;
}

static void texts(onepool_generator *generator) {
    size_t context = 0, count = 0;
    OK(onepool_generator_context(generator, &context));
    CHECK(context == 512);
    onepool_generate_options options = hello();
    uint32_t tokens[6] = {0};
    OK(onepool_generator_tokens(generator, &options, tokens, 6, &count));
    CHECK(count == 6 && memcmp(tokens, PROMPT, sizeof(PROMPT)) == 0);
    OK(onepool_generator_tokens(generator, &options, NULL, 0, &count));
    CHECK(count == 6);

    told first = {0}, second = {0};
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    first.generator = generator;
    OK(onepool_generate(generator, &options, tell, &first, &made));
    CHECK(made.tokens == 20 && made.prompt_tokens == 6 && made.finish == ONEPOOL_FINISH_LENGTH);
    CHECK(made.prompt_ns > 0 && made.generation_ns > 0 && first.calls > 5);
    CHECK(first.again == ONEPOOL_ERROR_BUSY);
    printf("text %s\n", first.text);
    /* The same from tokens; no one need look at the numbers. */
    options.text = NULL;
    options.tokens = PROMPT;
    options.token_count = 6;
    OK(onepool_generate(generator, &options, tell, &second, NULL));
    CHECK(first.bytes == second.bytes && memcmp(first.text, second.text, first.bytes) == 0);

    /* Seeds. */
    const float temperature = 0.9f;
    const uint64_t top_k = 40;
    told drawn[3];
    memset(drawn, 0, sizeof(drawn));
    options = hello();
    options.temperature = &temperature;
    options.top_k = &top_k;
    for (int i = 0; i < 3; i++) {
        options.seed = i < 2 ? 3 : 4;
        OK(onepool_generate(generator, &options, tell, &drawn[i], NULL));
    }
    CHECK(strcmp(drawn[0].text, drawn[1].text) == 0 && strcmp(drawn[0].text, drawn[2].text) != 0);

    /* Ends: a string, the callback, a token of cancellation. */
    char part[3] = {first.text[first.bytes / 2], first.text[first.bytes / 2 + 1], 0};
    const char *stop[2] = {"never there", "x"};
    if ((unsigned char)part[0] < 128 && (unsigned char)part[1] < 128) {
        stop[1] = part;
    }
    told stopped = {0};
    options = hello();
    options.stop = stop;
    options.stop_count = 2;
    OK(onepool_generate(generator, &options, tell, &stopped, &made));
    const char *at = strstr(first.text, stop[1]);
    CHECK((made.finish == ONEPOOL_FINISH_STOP) == (at != NULL));
    CHECK(at == NULL || stopped.bytes == (size_t)(at - first.text));
    told early = {0};
    early.most = 3;
    options = hello();
    OK(onepool_generate(generator, &options, tell, &early, &made));
    CHECK(made.finish == ONEPOOL_FINISH_CANCELLED && early.calls == 3);
    OK(onepool_cancel_create(&options.cancel));
    OK(onepool_cancel_trigger(options.cancel));
    told none = {0};
    OK(onepool_generate(generator, &options, tell, &none, &made));
    CHECK(made.finish == ONEPOOL_FINISH_CANCELLED && none.calls == 0);
    OK(onepool_cancel_free(options.cancel));

    /* A chat. */
    onepool_message messages[2] = {ONEPOOL_MESSAGE_INIT, ONEPOOL_MESSAGE_INIT};
    messages[0].role = "system", messages[0].content = "Be brief.";
    messages[1].role = "user", messages[1].content = "Hello";
    options = hello();
    options.text = NULL;
    options.messages = messages;
    options.message_count = 2;
    told chat = {0};
    OK(onepool_generate(generator, &options, tell, &chat, &made));
    CHECK(made.prompt_tokens > 6 && chat.calls > 0);
    messages[1].role = NULL;
    EXPECT(BAD, onepool_generate(generator, &options, tell, &chat, &made), "messages[1].role");
}

/* A model of models/tiny_seq2seq, beside the folder of `model`. */
static const char *beside(const char *model, const char *name) {
    static char path[4096];
    CHECK(snprintf(path, sizeof(path), "%s/../../tiny_seq2seq/%s", model, name) < (int)sizeof(path));
    return path;
}

static void encoders(const char *model, const char *device) {
    onepool_generator *text = open_generator(beside(model, "text"), device);
    onepool_generate_options options = hello();
    told first = {0}, second = {0};
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    OK(onepool_generate(text, &options, tell, &first, &made));
    CHECK(made.tokens == 20 && made.prompt_tokens == 6);

    onepool_generator *speech = open_generator(beside(model, "speech"), device);
    float features[4 * 16];
    for (size_t i = 0; i < 4 * 16; i++) {
        features[i] = (float)(i % 7) - 3.0f;
    }
    const size_t shape[3] = {1, 4, 16}, wrong[3] = {1, 16, 4};
    options.text = NULL;
    options.features = features;
    options.features_shape = shape;
    options.features_rank = 3;
    OK(onepool_generate(speech, &options, tell, &second, &made));
    CHECK(made.tokens == 20);
    options.tokens = PROMPT;
    options.token_count = 6;
    OK(onepool_generate(speech, &options, tell, &second, &made));
    CHECK(made.tokens == 20 && made.prompt_tokens == 6);
    EXPECT(BAD, onepool_generate(text, &options, tell, &second, &made), "give the prompt as such");
    options.features_shape = wrong;
    EXPECT(BAD, onepool_generate(speech, &options, tell, &second, &made), "[1, 16, 4]");
    options.features_shape = NULL;
    EXPECT(BAD, onepool_generate(speech, &options, tell, &second, &made), "features_shape");
    options.features_shape = shape;
    options.features = NULL;
    EXPECT(BAD, onepool_generate(speech, &options, tell, &second, &made), "`options.features`");
    options.features = features;
    options.text = "Hello";
    EXPECT(BAD, onepool_generate(speech, &options, tell, &second, &made), "one prompt");
    options.text = NULL;
    options.features_rank = 9;
    EXPECT(BAD, onepool_generate(speech, &options, tell, &second, &made), "at most 8");
    OK(onepool_generator_free(text));
    OK(onepool_generator_free(speech));
}

static void vectors(const char *model, const char *device) {
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    onepool_embedder *embedder = NULL;
    OK(onepool_embedder_open(beside(model, "vectors"), &options, &embedder));
    const char *texts[3] = {"Hello", "The quick brown fox", "hello"};
    float made[3 * 16] = {0}, few[4] = {0};
    size_t dims = 0;
    OK(onepool_embed(embedder, texts, 3, NULL, NULL, 0, &dims));
    CHECK(dims == 16);
    OK(onepool_embed(embedder, texts, 3, NULL, made, 3 * 16, &dims));
    double length = 0, between = 0, other = 0;
    for (size_t i = 0; i < 16; i++) {
        length += (double)made[i] * made[i];
        between += (double)made[i] * made[32 + i];
        other += (double)made[i] * made[16 + i];
    }
    /* The model has no upper case. */
    CHECK(length > 0.9999 && length < 1.0001 && between > 0.9999 && other < 0.999);
    onepool_embed_options given = ONEPOOL_EMBED_OPTIONS_INIT;
    given.prompt = "query";
    given.dims = 3;
    few[3] = 7.0f;
    OK(onepool_embed(embedder, texts, 1, &given, few, 3, &dims));
    CHECK(dims == 3 && few[3] == 7.0f && few[0] != 0.0f);
    given.prompt = "answer";
    EXPECT(BAD, onepool_embed(embedder, texts, 1, &given, few, 3, &dims), "answer");
    given.prompt = NULL;
    given.dims = 17;
    EXPECT(BAD, onepool_embed(embedder, texts, 1, &given, few, 3, &dims), "dims is 17");
    given.struct_size = 0;
    EXPECT(BAD, onepool_embed(embedder, texts, 1, &given, few, 3, &dims), "struct_size");
    EXPECT(BAD, onepool_embed(embedder, NULL, 1, NULL, few, 3, &dims), "`texts`");
    EXPECT(BAD, onepool_embed(embedder, texts, 1, NULL, NULL, 3, &dims), "`vectors`");
    EXPECT(BAD, onepool_embed(embedder, texts, 1, NULL, few, 3, NULL), "`dims`");
    texts[1] = NULL;
    EXPECT(BAD, onepool_embed(embedder, texts, 2, NULL, few, 3, &dims), "texts[1]");
    onepool_embedder *none = NULL;
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_embedder_open("/nowhere", NULL, &none), "nowhere");
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_embedder_open(model, &options, &none), "has the outputs");
    EXPECT(BAD, onepool_embedder_open(NULL, NULL, &none), "`path`");
    EXPECT(BAD, onepool_embedder_open(model, NULL, NULL), "`embedder`");
    CHECK(none == NULL);
    EXPECT(NO_HANDLE, onepool_embed((onepool_embedder *)&dims, texts, 1, NULL, few, 3, &dims), "is no handle");
    OK(onepool_embedder_free(embedder));
    EXPECT(NO_HANDLE, onepool_embedder_free(embedder), "embedder");
}

static void refused(onepool_generator *generator, const char *model) {
    onepool_generator *other = NULL;
    size_t count = 0;
    told none = {0};
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_generator_open("/nowhere", NULL, 0, &other), "nowhere");
    EXPECT(BAD, onepool_generator_open(NULL, NULL, 0, &other), "`path`");
    EXPECT(BAD, onepool_generator_open(model, NULL, 0, NULL), "`generator`");
    EXPECT(BAD, onepool_generator_open(model, NULL, (size_t)1 << 40, &other), "context");
    CHECK(other == NULL);
    const float minus = -1.0f, two = 2.0f;
    onepool_generate_options options = hello();
#define REFUSED(change, part)                                                               \
    do {                                                                                    \
        options = hello();                                                                  \
        change;                                                                             \
        EXPECT(BAD, onepool_generate(generator, &options, tell, &none, &made), part);       \
    } while (0)
    REFUSED(options.text = NULL, "one prompt");
    REFUSED(options.tokens = PROMPT; options.token_count = 6, "one prompt");
    REFUSED(options.text = "\xff", "UTF-8");
    REFUSED(options.temperature = &minus, "temperature");
    REFUSED(options.top_p = &two, "top-p");
    REFUSED(options.min_p = &two, "min-p");
    REFUSED(options.repetition_penalty = &minus, "penalty");
    REFUSED(options.stop_count = 1, "stop");
    REFUSED(options.ignore_end = 2, "ignore_end");
    REFUSED(options.reserved = 1, "reserved");
    REFUSED(options.struct_size = 0, "struct_size");
    const uint32_t unknown = 4000000000u;
    REFUSED(options.text = NULL; options.tokens = &unknown; options.token_count = 1, "4000000000");
    options = hello();
    options.cancel = (onepool_cancel *)generator;
    EXPECT(NO_HANDLE, onepool_generate(generator, &options, tell, &none, &made), "options.cancel");
    options = hello();
    EXPECT(BAD, onepool_generate(generator, &options, NULL, NULL, &made), "`callback`");
    made.struct_size = 8;
    EXPECT(BAD, onepool_generate(generator, &options, tell, &none, &made), "struct_size");
    CHECK(none.calls == 0);
    EXPECT(BAD, onepool_generator_tokens(generator, NULL, NULL, 0, &count), "`options`");
    EXPECT(BAD, onepool_generator_tokens(generator, &options, NULL, 3, &count), "`tokens`");
    EXPECT(BAD, onepool_generator_tokens(generator, &options, NULL, 0, NULL), "`count`");
    EXPECT(BAD, onepool_generator_context(generator, NULL), "`tokens`");
    EXPECT(NO_HANDLE, onepool_generator_free((onepool_generator *)&count), "is no handle");
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    onepool_generator *generator = open_generator(argv[1], argv[2]);
    texts(generator);
    refused(generator, argv[1]);
    OK(onepool_generator_free(generator));
    encoders(argv[1], argv[2]);
    vectors(argv[1], argv[2]);
    nothing_left();
    puts("all of generate passed");
    return 0;
}
