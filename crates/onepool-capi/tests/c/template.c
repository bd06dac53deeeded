/* template MODEL DEVICE: one of several graphs of a folder, variables of its chat template, and the type of its cache. */
#include "text.h"

/* The tokens of a prompt. */
static size_t tokens(onepool_generator *generator, const onepool_generate_options *options, uint32_t *all) {
    size_t count = 0;
    OK(onepool_generator_tokens(generator, options, all, 256, &count));
    CHECK(count <= 256);
    return count;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    onepool_generator_options opening = ONEPOOL_GENERATOR_OPTIONS_INIT;
    onepool_session_options session = ONEPOOL_SESSION_OPTIONS_INIT;
    session.devices = (const char *const *)&argv[2];
    session.device_count = 1;
    onepool_template_arg args[2] = {ONEPOOL_TEMPLATE_ARG_INIT, ONEPOOL_TEMPLATE_ARG_INIT};
    args[0].name = "tools", args[0].json = "[{\"b\": 1, \"a\": 2}]";
    args[1].name = "x", args[1].json = "\"!\"";
    opening.variant = "q4f16";
    opening.template_args = args;
    opening.template_arg_count = 2;
    opening.cache_type = "q8";
    const onepool_generator_options good = opening;
    onepool_generator *generator = NULL;
    OK(onepool_generator_open(argv[1], &session, &good, &generator));

    uint32_t chat[256], text[256];
    onepool_message message = ONEPOOL_MESSAGE_INIT;
    message.role = "user", message.content = "Hello";
    onepool_generate_options options = ONEPOOL_GENERATE_OPTIONS_INIT;
    options.messages = &message;
    options.message_count = 1;
    const size_t count = tokens(generator, &options, chat);
    onepool_generate_options written = ONEPOOL_GENERATE_OPTIONS_INIT;
    written.text = "Hello[{\"b\": 1, \"a\": 2}]!";
    /* A text has the mark of its begin. */
    CHECK(tokens(generator, &written, text) == count + 1 && !memcmp(text + 1, chat, count * sizeof(*chat)));
    message.role = message.content = NULL;
    message.json = "{\"role\": \"user\", \"content\": \"Hello\", \"tool_calls\": []}";
    CHECK(tokens(generator, &options, text) == count && !memcmp(text, chat, count * sizeof(*chat)));
    size_t none = 0;
    message.json = "{\"content\": \"Hello\"}";
    EXPECT(BAD, onepool_generator_tokens(generator, &options, text, 256, &none), "`options.messages[0].json`");
    message = (onepool_message)ONEPOOL_MESSAGE_INIT;
    message.role = "user", message.content = "Hello";
    told made = {0};
    options.max_tokens = 4;
    options.ignore_end = 1;
    OK(onepool_generate(generator, &options, tell, &made, NULL));
    CHECK(made.calls > 0);
    OK(onepool_generator_free(generator));

    generator = NULL;
#define NOT_OPENED(status, change, part)                                                       \
    do {                                                                                       \
        opening = good;                                                                        \
        change;                                                                                \
        EXPECT(status, onepool_generator_open(argv[1], &session, &opening, &generator), part); \
    } while (0)
    NOT_OPENED(ONEPOOL_ERROR_MODEL, opening.variant = "q8", "model_q8.onnx");
    NOT_OPENED(ONEPOOL_ERROR_MODEL, opening.variant = "../x", "the variant");
    NOT_OPENED(BAD, opening.variant = "\xff", "`options.variant` is not UTF-8");
    NOT_OPENED(BAD, opening.cache_type = "q5", "expected one of \"f32\", \"f16\", \"q8\", \"q4\"");
    NOT_OPENED(BAD, opening.template_args = NULL, "`options.template_args` is null");
    NOT_OPENED(BAD, opening.template_arg_count = 5000, "at most 4096");
    NOT_OPENED(BAD, args[1].json = "no json", "`options.template_args[1]` is not taken");
    NOT_OPENED(BAD, args[1].json = NULL, "`options.template_args[1].json` is null");
    NOT_OPENED(BAD, (args[1].json = "[]", args[1].name = "messages"), "the messages are those of the prompt");
    NOT_OPENED(BAD, args[1].name = NULL, "`options.template_args[1].name` is null");
    CHECK(generator == NULL);
    nothing_left();
    puts("all of template passed");
    return 0;
}
