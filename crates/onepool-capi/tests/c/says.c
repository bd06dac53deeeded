/* says MODEL DEVICE: what the library says, what a model says of itself, and how a session is opened. */
#include <pthread.h>

#include "check.h"

#define BAD ONEPOOL_ERROR_INVALID_ARGUMENT
#define NO_HANDLE ONEPOOL_ERROR_INVALID_HANDLE

/* y = Relu(x), of an opset that no library knows yet. */
static const unsigned char RELU[] = {
    0x08, 8, 0x12, 1, 'p', 0x1a, 1, '2', 0x22, 3, 'o', '.', 'e', 0x28, 7, 0x32, 3, 'd', 'o', 'c', /* of the model */
    0x3a, 55, 0x0a, 12, 0x0a, 1, 'x', 0x12, 1, 'y', 0x22, 4, 'R', 'e', 'l', 'u', 0x12, 1, 'g', 0x52, 2, 'h', 'i',
    0x5a, 15, 0x0a, 1, 'x', 0x12, 10, 0x0a, 8, 0x08, 1, 0x12, 4, 0x0a, 2, 0x08, 2, /* x: float32[2] */
    0x62, 15, 0x0a, 1, 'y', 0x12, 10, 0x0a, 8, 0x08, 1, 0x12, 4, 0x0a, 2, 0x08, 2, /* y: float32[2] */
    0x42, 3, 0x10, 0xe7, 0x07,                                                     /* opset 999 */
    0x72, 6, 0x0a, 1, 'k', 0x12, 1, 'v', 0x72, 5, 0x0a, 1, 'a', 0x12, 0,           /* k: v, a: nothing */
};

static onepool_session *load(const char *device) {
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    onepool_session *session = NULL;
    OK(onepool_session_load(RELU, sizeof(RELU), NULL, &options, &session));
    return session;
}

typedef struct {
    pthread_mutex_t lock;
    int newer, others, urgent;
    onepool_status again;
    const char *device;
} heard;

static void hear(void *user, uint32_t level, const char *target, const char *message) {
    heard *h = user;
    pthread_mutex_lock(&h->lock);
    CHECK(level >= ONEPOOL_LOG_ERROR && level <= ONEPOOL_LOG_TRACE && strncmp(target, "onepool", 7) == 0);
    CHECK(strlen(message) > 0);
    if (strstr(message, "the opset is newer than this library opset=999 newest=")) {
        CHECK(level == ONEPOOL_LOG_WARNING && strcmp(target, "onepool::loader::onnx") == 0);
        h->newer++;
        h->again = onepool_log_set_callback(ONEPOOL_LOG_ERROR, NULL, NULL);
    } else {
        h->others++;
    }
    h->urgent += level <= ONEPOOL_LOG_WARNING;
    pthread_mutex_unlock(&h->lock);
    if (h->device) {
        /* What this says is not told: there would be no end. */
        OK(onepool_session_free(load(h->device)));
    }
}

static void *loads(void *user) {
    for (int i = 0; i < 3; i++) {
        OK(onepool_session_free(load(user)));
    }
    return NULL;
}

static void logs(const char *device) {
    heard h = {.lock = PTHREAD_MUTEX_INITIALIZER, .again = ONEPOOL_OK};
    EXPECT(BAD, onepool_log_set_callback(0, hear, &h), "`level` is 0");
    EXPECT(BAD, onepool_log_set_callback(6, hear, &h), "`level` is 6");
    OK(onepool_log_set_callback(0, NULL, NULL));
    OK(onepool_session_free(load(device)));
    CHECK(h.newer + h.others == 0);

    OK(onepool_log_set_callback(ONEPOOL_LOG_WARNING, hear, &h));
    OK(onepool_session_free(load(device)));
    CHECK(h.newer == 1 && h.urgent == h.newer + h.others && h.again == ONEPOOL_ERROR_BUSY);
    CHECK(strstr(onepool_last_error(), "a callback of the log cannot set another one"));

    /* Less urgent messages come too, and a callback may load models itself. */
    h.device = device;
    OK(onepool_log_set_callback(ONEPOOL_LOG_TRACE, hear, &h));
    OK(onepool_session_free(load(device)));
    CHECK(h.newer == 2);
    h.device = NULL;
    OK(onepool_log_set_callback(ONEPOOL_LOG_ERROR, hear, &h));
    OK(onepool_session_free(load(device)));
    CHECK(h.newer == 2);

    /* Threads say something while the callback is set and taken away: after that it is not called. */
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&threads[i], NULL, loads, (void *)(uintptr_t)device) == 0);
    }
    for (int i = 0; i < 200; i++) {
        heard *other = calloc(1, sizeof(*other));
        CHECK(other && pthread_mutex_init(&other->lock, NULL) == 0);
        OK(onepool_log_set_callback(ONEPOOL_LOG_DEBUG, hear, other));
        OK(onepool_log_set_callback(ONEPOOL_LOG_DEBUG, NULL, NULL));
        pthread_mutex_destroy(&other->lock);
        free(other);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

static void metadata(const char *model, const char *device) {
    onepool_session *session = load(device);
    onepool_metadata said = ONEPOOL_METADATA_INIT;
    OK(onepool_session_metadata(session, &said));
    CHECK(!strcmp(said.format, "ONNX") && !strcmp(said.graph, "g") && !strcmp(said.producer, "p"));
    CHECK(!strcmp(said.producer_version, "2") && !strcmp(said.domain, "o.e") && !strcmp(said.description, "doc"));
    CHECK(!strcmp(said.graph_description, "hi") && said.version == 7 && said.ir_version == 8);
    CHECK(said.opset_count == 1 && said.property_count == 2);
    const char *name = NULL, *value = NULL;
    int64_t version = 0;
    OK(onepool_session_opset(session, 0, &name, &version));
    CHECK(!strcmp(name, "") && version == 999);
    OK(onepool_session_property(session, 0, &name, &value));
    CHECK(!strcmp(name, "a") && !strcmp(value, ""));
    OK(onepool_session_property(session, 1, &name, &value));
    CHECK(!strcmp(name, "k") && !strcmp(value, "v"));
    value = NULL;
    OK(onepool_session_find_property(session, "k", &value));
    CHECK(!strcmp(value, "v"));
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_session_find_property(session, "K", &value), "no property \"K\"");
    EXPECT(BAD, onepool_session_find_property(session, NULL, &value), "`name` is null");
    EXPECT(BAD, onepool_session_find_property(session, "k", NULL), "`value` is null");
    EXPECT(BAD, onepool_session_property(session, 2, &name, &value), "`index` is 2, and there are 2");
    EXPECT(BAD, onepool_session_property(session, 0, NULL, &value), "`name` is null");
    EXPECT(BAD, onepool_session_opset(session, 1, &name, &version), "`index` is 1");
    EXPECT(BAD, onepool_session_opset(session, 0, &name, NULL), "`version` is null");
    said.struct_size = 0;
    EXPECT(BAD, onepool_session_metadata(session, &said), "struct_size of 0");
    EXPECT(BAD, onepool_session_metadata(session, NULL), "`metadata` is null");
    OK(onepool_session_free(session));
    said.struct_size = sizeof(said);
    EXPECT(NO_HANDLE, onepool_session_metadata(session, &said), "`session` was freed");
    EXPECT(NO_HANDLE, onepool_session_opset(session, 0, &name, &version), "`session` was freed");
    EXPECT(NO_HANDLE, onepool_session_property(session, 0, &name, &value), "`session` was freed");
    EXPECT(NO_HANDLE, onepool_session_find_property(session, "k", &value), "`session` was freed");
    session = open_session(model, device);
    OK(onepool_session_metadata(session, &said));
    CHECK(!strcmp(said.format, "ONNX") && said.opset_count >= 1);
    OK(onepool_session_free(session));
}

static void options(const char *model, const char *device) {
    onepool_session_options good = ONEPOOL_SESSION_OPTIONS_INIT;
    good.devices = &device;
    good.device_count = 1;
    onepool_session *session = NULL;
#define REFUSED(field, wrong, status, part)                                  \
    do {                                                                     \
        onepool_session_options options = good;                              \
        options.field = wrong;                                               \
        EXPECT(status, onepool_session_open(model, &options, &session), part); \
    } while (0)
    REFUSED(any_device, 2, BAD, "`options.any_device` is 2");
    REFUSED(activations, 2, BAD, "`options.activations` is 2");
    REFUSED(integers, 3, BAD, "`options.integers` is 3");
    REFUSED(coarse_filter, 2, BAD, "`options.coarse_filter` is 2");
    REFUSED(no_fuse, 2, BAD, "`options.no_fuse` is 2");
    REFUSED(tuning, 3, BAD, "`options.tuning` is 3");
    REFUSED(tuning_ns, 1, BAD, "`options.tuning_ns` is given, and `options.tuning` is not ONEPOOL_TUNING_WITHIN");
    REFUSED(tuning_dir, model, BAD, "`options.tuning_dir` is no folder for caches");
    REFUSED(submission, 4, BAD, "`options.submission` is 4");
    REFUSED(submission_ns, 1, BAD, "`options.submission_ns` is given");
    REFUSED(wait, 3, BAD, "`options.wait` is 3");
    REFUSED(priority, 2, BAD, "`options.priority` is 2");
    REFUSED(robustness, 3, BAD, "`options.robustness` is 3");
    REFUSED(validation, 2, BAD, "`options.validation` is 2");
    REFUSED(map_weights, 2, BAD, "`options.map_weights` is 2");
    REFUSED(params, "no/such/file", ONEPOOL_ERROR_MODEL, "which no/such/file cannot be added to");
    REFUSED(place_count, 1, BAD, "`options.places` is null");
    onepool_session_options with_params = good;
    with_params.params = model;
    EXPECT(BAD, onepool_session_load(RELU, sizeof(RELU), NULL, &with_params, &session), "parameters of a file are those of a model");

    onepool_place place = ONEPOOL_PLACE_INIT;
    good.places = &place;
    good.place_count = 1;
#define NOT_PLACED(status, part) EXPECT(status, onepool_session_open(model, &good, &session), part)
    NOT_PLACED(BAD, "`options.places[0].name` is null");
    place.name = "no such node";
    NOT_PLACED(BAD, "no such node");
    place.kind = ONEPOOL_PLACE_OPERATOR, place.name = "Conv", place.device = 70;
    NOT_PLACED(BAD, "70");
    place.kind = ONEPOOL_PLACE_REST;
    NOT_PLACED(BAD, "`options.places[0].name` is given for ONEPOOL_PLACE_REST");
    place.kind = 3;
    NOT_PLACED(BAD, "`options.places[0].kind` is 3");

    /* All of them at once give what none of them gives, up to rounding. */
    float *input = malloc(BYTES), *expected = malloc(BYTES), *output = malloc(BYTES);
    fill(input, ELEMENTS, 5);
    session = open_session(model, device);
    by_value(session, input, expected);
    OK(onepool_session_free(session));
    const uint64_t budget = 1000000;
    place = (onepool_place){sizeof(place), ONEPOOL_PLACE_OPERATOR, 0, "Conv"};
    good.activations = ONEPOOL_ACTIVATIONS_EXACT;
    good.integers = ONEPOOL_INTEGERS_NEVER;
    good.coarse_filter = 1, good.no_fuse = 1, good.map_weights = 1, good.any_device = 1;
    good.placement = ONEPOOL_PLACEMENT_AUTO, good.placement_ns = &budget;
    good.tuning = ONEPOOL_TUNING_WITHIN, good.tuning_ns = budget;
    good.submission = ONEPOOL_SUBMISSION_AT_MOST, good.submission_ns = budget;
    good.wait = ONEPOOL_WAIT_BLOCK, good.priority = ONEPOOL_PRIORITY_NORMAL, good.robustness = ONEPOOL_ROBUSTNESS_ALL;
    OK(onepool_session_open(model, &good, &session));
    by_value(session, input, output);
    for (size_t i = 0; i < ELEMENTS; i++) {
        const float off = output[i] - expected[i];
        CHECK(off < 1e-3f && off > -1e-3f);
    }
    OK(onepool_session_free(session));
    free(input), free(expected), free(output);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    logs(argv[2]);
    metadata(argv[1], argv[2]);
    options(argv[1], argv[2]);
    nothing_left();
    puts("all of says passed");
    return 0;
}
