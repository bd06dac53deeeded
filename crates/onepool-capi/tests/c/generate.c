/* generate MODEL DEVICE: text from a tiny language model, and what is refused. */
#include <regex.h>

#include "text.h"

/* What models/tiny_llm/expected.json says of "Hello". */
static const uint32_t PROMPT[6] = {1, 78, 107, 114, 114, 117};

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

/* A text of some seed at a high temperature, which a grammar holds. */
static onepool_generated held(onepool_generator *generator, uint32_t kind, const char *grammar, uint64_t seed, told *text) {
    const float temperature = 1.5f;
    onepool_generate_options options = hello();
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    options.max_tokens = 200;
    options.temperature = &temperature;
    options.seed = seed;
    options.grammar_kind = kind;
    options.grammar = grammar;
    memset(text, 0, sizeof(*text));
    OK(onepool_generate(generator, &options, tell, text, &made));
    return made;
}

static void grammars(onepool_generator *generator) {
    const char *expression = "[0-9]{4}-(0[1-9]|1[0-2])";
    const char *schema =
        "{\"type\": \"object\", \"additionalProperties\": false, \"required\": [\"age\", \"tag\"], \"properties\":"
        "{\"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 120}, \"tag\": {\"enum\": [\"a\", \"b\"]}},"
        "\"x-guidance\": {\"whitespace_flexible\": false}}";
    regex_t whole;
    CHECK(regcomp(&whole, "^[0-9]{4}-(0[1-9]|1[0-2])$", REG_EXTENDED) == 0);
    told text;
    for (uint64_t seed = 0; seed < 3; seed++) {
        onepool_generated made = held(generator, ONEPOOL_GRAMMAR_REGEX, expression, seed, &text);
        CHECK(regexec(&whole, text.text, 0, NULL, 0) == 0 && made.finish == ONEPOOL_FINISH_GRAMMAR);
        held(generator, ONEPOOL_GRAMMAR_JSON_SCHEMA, schema, seed, &text);
        unsigned age = 1000;
        char tag[2] = {0};
        int end = 0;
        CHECK(sscanf(text.text, " { \"age\" : %u , \"tag\" : \"%1[ab]\" }%n", &age, tag, &end) == 2);
        CHECK(age <= 120 && end > 0 && text.text[end] == 0);
        held(generator, ONEPOOL_GRAMMAR_LARK, "start: \"x\" (\"y\" | \"z\")", seed, &text);
        CHECK(strcmp(text.text, "xy") == 0 || strcmp(text.text, "xz") == 0);
    }
    regfree(&whole);
}

/* Texts are the same with guesses as without, wherever tokens are chosen. */
static void guesses(const char *model, const char *device, onepool_generator *generator) {
    onepool_generate_options options = hello();
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    options.max_tokens = 60;
    told plain = {0}, looked_up = {0}, drafted = {0}, chosen[2] = {{.bytes = 0}, {.bytes = 0}};
    OK(onepool_generate(generator, &options, tell, &plain, &made));
    CHECK(made.guessed_tokens == 0 && made.accepted_tokens == 0 && made.reused_tokens == 0);
    options.lookup = 6;
    OK(onepool_generate(generator, &options, tell, &looked_up, &made));
    CHECK(strcmp(looked_up.text, plain.text) == 0);
    CHECK(made.accepted_tokens > 0 && made.accepted_tokens <= made.guessed_tokens);
    options.lookup = 0;
    onepool_generator_options opening = ONEPOOL_GENERATOR_OPTIONS_INIT;
    opening.draft = model;
    opening.draft_tokens = 3;
    onepool_generator *other = open_with(model, device, &opening);
    OK(onepool_generate(other, &options, tell, &drafted, &made));
    /* It guesses what it would choose. */
    CHECK(strcmp(drafted.text, plain.text) == 0);
    CHECK(made.guessed_tokens > 0 && made.accepted_tokens == made.guessed_tokens);
    OK(onepool_generator_free(other));
    opening = (onepool_generator_options)ONEPOOL_GENERATOR_OPTIONS_INIT;
    for (uint32_t on = ONEPOOL_SAMPLE_ON_HOST; on <= ONEPOOL_SAMPLE_ON_DEVICE; on++) {
        opening.sample_on = on;
        other = open_with(model, device, &opening);
        OK(onepool_generate(other, &options, tell, &chosen[on - 1], NULL));
        CHECK(strcmp(chosen[on - 1].text, plain.text) == 0);
        OK(onepool_generator_free(other));
    }
}

/* A conversation goes on from a file as it would without one. */
static void conversations(const char *program, const char *model, const char *device, onepool_generator *generator) {
    /* Beside the program, whose folder the test removes. */
    char path[4200];
    CHECK(snprintf(path, sizeof(path), "%s.conversation", program) < (int)sizeof(path));
    onepool_generate_options options = hello();
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    told first = {0}, kept = {0}, restored = {0};
    OK(onepool_generate(generator, &options, tell, &first, NULL));
    OK(onepool_generator_save(generator, path));
    char longer[4200];
    snprintf(longer, sizeof(longer), "Hello%s and more", first.text);
    options.text = longer;
    options.reuse = 1;
    OK(onepool_generate(generator, &options, tell, &kept, &made));
    CHECK(made.reused_tokens >= 6 && made.reused_tokens < made.prompt_tokens);
    const size_t reused = made.reused_tokens;
    onepool_generator *other = open_generator(model, device);
    size_t tokens = 0;
    OK(onepool_generator_restore(other, path, &tokens));
    CHECK(tokens >= reused);
    OK(onepool_generate(other, &options, tell, &restored, &made));
    CHECK(made.reused_tokens == reused && strcmp(restored.text, kept.text) == 0);
    /* Damaged, and not there. */
    FILE *damaged = fopen(path, "r+b");
    CHECK(damaged && fseek(damaged, -40, SEEK_END) == 0 && fputs("damage", damaged) >= 0 && fclose(damaged) == 0);
    EXPECT(BAD, onepool_generator_restore(other, path, &tokens), path);
    EXPECT(BAD, onepool_generator_restore(other, path, NULL), "`tokens`");
    EXPECT(BAD, onepool_generator_restore(other, NULL, &tokens), "`path`");
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_generator_restore(other, "/nowhere", &tokens), "nowhere");
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_generator_save(other, "/nowhere/file"), "nowhere");
    EXPECT(BAD, onepool_generator_save(other, NULL), "`path`");
    EXPECT(NO_HANDLE, onepool_generator_save(NULL, path), "is null");
    EXPECT(NO_HANDLE, onepool_generator_restore(NULL, path, &tokens), "is null");
    OK(onepool_generator_free(other));
    CHECK(remove(path) == 0);
}

static void encoders(const char *model, const char *device) {
    onepool_generator *text = open_generator(beside(model, "../tiny_seq2seq/text"), device);
    onepool_generate_options options = hello();
    told first = {0}, second = {0};
    onepool_generated made = ONEPOOL_GENERATED_INIT;
    OK(onepool_generate(text, &options, tell, &first, &made));
    CHECK(made.tokens == 20 && made.prompt_tokens == 6);

    onepool_generator *speech = open_generator(beside(model, "../tiny_seq2seq/speech"), device);
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
    OK(onepool_embedder_open(beside(model, "../tiny_seq2seq/vectors"), &options, &embedder));
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
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_generator_open("/nowhere", NULL, NULL, &other), "nowhere");
    EXPECT(BAD, onepool_generator_open(NULL, NULL, NULL, &other), "`path`");
    EXPECT(BAD, onepool_generator_open(model, NULL, NULL, NULL), "`generator`");
    onepool_generator_options opening;
#define NOT_OPENED(status, change, part)                                                    \
    do {                                                                                    \
        opening = (onepool_generator_options)ONEPOOL_GENERATOR_OPTIONS_INIT;                \
        change;                                                                             \
        EXPECT(status, onepool_generator_open(model, NULL, &opening, &other), part);        \
    } while (0)
    NOT_OPENED(BAD, opening.context = (size_t)1 << 40, "context");
    NOT_OPENED(BAD, opening.sample_on = 3, "options.sample_on");
    NOT_OPENED(BAD, opening.draft_tokens = 4, "options.draft_tokens");
    NOT_OPENED(BAD, opening.reserved = 1, "options.reserved");
    NOT_OPENED(BAD, opening.struct_size = 8, "struct_size");
    NOT_OPENED(BAD, opening.draft = "\xff", "options.draft");
    NOT_OPENED(ONEPOOL_ERROR_MODEL, opening.draft = "/nowhere", "`options.draft`: ");
    NOT_OPENED(ONEPOOL_ERROR_MODEL, opening.draft = beside(model, "../tiny_seq2seq/text"), "`options.draft`: ");
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
    REFUSED(options.reuse = 2, "options.reuse");
    REFUSED(options.grammar = "a", "options.grammar_kind");
    REFUSED(options.grammar = "a"; options.grammar_kind = 4, "options.grammar_kind");
    REFUSED(options.grammar_kind = ONEPOOL_GRAMMAR_REGEX, "`options.grammar`");
    REFUSED(options.grammar = "("; options.grammar_kind = ONEPOOL_GRAMMAR_REGEX, "the grammar: ");
    REFUSED(options.grammar = "{"; options.grammar_kind = ONEPOOL_GRAMMAR_JSON_SCHEMA, "the schema is no JSON");
    REFUSED(options.grammar = "x"; options.grammar_kind = ONEPOOL_GRAMMAR_LARK, "the grammar: ");
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
    grammars(generator);
    guesses(argv[1], argv[2], generator);
    conversations(argv[0], argv[1], argv[2], generator);
    refused(generator, argv[1]);
    OK(onepool_generator_free(generator));
    encoders(argv[1], argv[2]);
    vectors(argv[1], argv[2]);
    nothing_left();
    puts("all of generate passed");
    return 0;
}
