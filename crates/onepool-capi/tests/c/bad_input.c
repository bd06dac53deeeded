/* bad_input MODEL DEVICE: each function, given what it cannot take. None of it may crash, leak or change anything. */
#include "check.h"

#define BAD ONEPOOL_ERROR_INVALID_ARGUMENT
#define NO_HANDLE ONEPOOL_ERROR_INVALID_HANDLE

static char *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    CHECK(file && fseek(file, 0, SEEK_END) == 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes);
    CHECK(data && fread(data, 1, *bytes, file) == *bytes);
    fclose(file);
    return data;
}

static void sessions(const char *model, const char *device) {
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT, none = options;
    onepool_session *session = NULL;
    options.devices = &device;
    options.device_count = 1;
    const onepool_session_options good = options;
    EXPECT(BAD, onepool_session_open(NULL, &good, &session), "`path` is null");
    EXPECT(BAD, onepool_session_open(model, &good, NULL), "`session` is null");
    EXPECT(BAD, onepool_session_open("\xff\xfe", &good, &session), "`path` is not UTF-8");
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_session_open("no/such/model.onnx", &good, &session), "no/such/model.onnx: cannot open the file: No such");
    options.struct_size = 0;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "struct_size of 0");
    options.struct_size = 8;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "struct_size of 8");
    options.struct_size = (size_t)-1;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "impossible struct_size");
    struct {
        onepool_session_options options;
        uint64_t later;
    } larger = {good, 0};
    larger.options.struct_size = sizeof larger;
    larger.later = 1;
    EXPECT(BAD, onepool_session_open(model, &larger.options, &session), "this version of the library does not have");
    options = good, options.devices = NULL;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.devices` is null");
    options = good, options.device_count = 65;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "at most 64");
    const char *nothing[2] = {"cpu", NULL};
    options = good, options.devices = nothing, options.device_count = 2;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.devices[1]` is null");
    nothing[1] = "abacus";
    EXPECT(ONEPOOL_ERROR_NO_DEVICE, onepool_session_open(model, &options, &session), "abacus");
    const char *cpu[1] = {"cpu"};
    options = good, options.devices = cpu, options.device_count = 1, options.threads = 100000;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "100000 threads are asked for");
    options = good, options.cache_dir = model;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.cache_dir` is no folder for caches");
    options = good, options.precision = 2;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.precision` is 2");
    options = good, options.placement = 9;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.placement`");
    options = good, options.strict = 2;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.strict`");
    options = good, options.no_fallback = 2;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.no_fallback`");
    options = good, options.reserved = 1;
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.reserved`");
    options = none, options.cache_dir = "\x80";
    EXPECT(BAD, onepool_session_open(model, &options, &session), "`options.cache_dir`");

    size_t bytes = 0;
    char *data = read_file(model, &bytes);
    EXPECT(BAD, onepool_session_load(NULL, bytes, NULL, &good, &session), "`data` is null");
    EXPECT(BAD, onepool_session_load(data, bytes, NULL, &good, NULL), "`session` is null");
    EXPECT(BAD, onepool_session_load(data, (size_t)-1, NULL, &good, &session), "`bytes`");
    EXPECT(ONEPOOL_ERROR_MODEL, onepool_session_load(data, 0, NULL, &good, &session), "");
    for (size_t part = 1; part < 8; part++) {
        EXPECT(ONEPOOL_ERROR_MODEL, onepool_session_load(data, bytes * part / 8, NULL, &good, &session), "");
    }
    CHECK(session == NULL);
    OK(onepool_session_load(data, bytes, NULL, &good, &session));
    free(data);

    size_t count = 7;
    onepool_io_info io = ONEPOOL_IO_INFO_INIT;
    const char *name = NULL;
    EXPECT(BAD, onepool_session_input_count(session, NULL), "`count`");
    EXPECT(BAD, onepool_session_output_count(session, NULL), "`count`");
    EXPECT(BAD, onepool_session_device_count(session, NULL), "`count`");
    EXPECT(NO_HANDLE, onepool_session_input_count(NULL, &count), "`session` is null");
    EXPECT(NO_HANDLE, onepool_session_output_count(NULL, &count), "`session` is null");
    EXPECT(NO_HANDLE, onepool_session_device_count(NULL, &count), "`session` is null");
    CHECK(count == 7);
    EXPECT(BAD, onepool_session_input(session, 0, NULL), "`info`");
    EXPECT(BAD, onepool_session_input(session, 1, &io), "`index` is 1");
    EXPECT(BAD, onepool_session_output(session, (size_t)-1, &io), "`index`");
    EXPECT(NO_HANDLE, onepool_session_input(NULL, 0, &io), "`session`");
    EXPECT(NO_HANDLE, onepool_session_output(NULL, 0, &io), "`session`");
    EXPECT(NO_HANDLE, onepool_session_device(NULL, 0, &name), "`session`");
    EXPECT(BAD, onepool_session_device(session, 99, &name), "`index`");
    EXPECT(BAD, onepool_session_device(session, 0, NULL), "`name`");
    io.struct_size = 1;
    EXPECT(BAD, onepool_session_input(session, 0, &io), "struct_size");
    CHECK(io.name == NULL && name == NULL);
    EXPECT(NO_HANDLE, onepool_session_free((onepool_session *)&count), "is no handle");
    EXPECT(NO_HANDLE, onepool_session_free((onepool_session *)(uintptr_t)1), "is no handle");
    OK(onepool_session_free(session));
    EXPECT(NO_HANDLE, onepool_session_free(session), "was freed");
    EXPECT(NO_HANDLE, onepool_session_input_count(session, &count), "was freed");
    OK(onepool_session_free(NULL));
}

static void regions(void) {
    onepool_region *region = NULL;
    onepool_view *view = NULL;
    void *data = NULL;
    size_t bytes = 0;
    EXPECT(BAD, onepool_region_create(16, NULL), "`region` is null");
    EXPECT(ONEPOOL_ERROR_OUT_OF_MEMORY, onepool_region_create((size_t)-1, &region), "");
    EXPECT(ONEPOOL_ERROR_OUT_OF_MEMORY, onepool_region_create((size_t)1 << 62, &region), "");
    OK(onepool_region_create(100, &region));
    EXPECT(BAD, onepool_region_bytes(region, NULL), "`bytes`");
    EXPECT(NO_HANDLE, onepool_region_bytes(NULL, &bytes), "`region`");
    EXPECT(BAD, onepool_region_map(region, 0, 16, ONEPOOL_READ, NULL), "`view`");
    EXPECT(BAD, onepool_region_map(region, 0, 16, ONEPOOL_WRITE, &view), "`access` is 1");
    EXPECT(BAD, onepool_region_map(region, 0, 16, 77, &view), "`access` is 77");
    EXPECT(BAD, onepool_region_map(region, 90, 11, ONEPOOL_READ, &view), "");
    EXPECT(BAD, onepool_region_map(region, (size_t)-1, 2, ONEPOOL_READ, &view), "");
    EXPECT(NO_HANDLE, onepool_region_map(NULL, 0, 16, ONEPOOL_READ, &view), "`region`");
    OK(onepool_region_map(region, 10, 90, ONEPOOL_READ, &view));
    EXPECT(BAD, onepool_view_data(view, NULL, &bytes), "`data`");
    EXPECT(BAD, onepool_view_data(view, &data, NULL), "`bytes`");
    EXPECT(NO_HANDLE, onepool_view_data(NULL, &data, &bytes), "`view`");
    EXPECT(NO_HANDLE, onepool_view_data((onepool_view *)region, &data, &bytes), "is a onepool_region, expected a onepool_view");
    EXPECT(NO_HANDLE, onepool_region_free((onepool_region *)view), "expected a onepool_region");
    OK(onepool_view_free(view));
    EXPECT(NO_HANDLE, onepool_view_free(view), "was freed");
    OK(onepool_region_free(region));
    EXPECT(NO_HANDLE, onepool_region_free(region), "was freed");
    OK(onepool_region_free(NULL));
    OK(onepool_view_free(NULL));
}

static void no_call(void *user) { *(int *)user = 1; }

static void bindings(const char *model, const char *device) {
    onepool_session *session = open_session(model, device);
    onepool_binding *binding = NULL;
    onepool_tensor_info info = ONEPOOL_TENSOR_INFO_INIT;
    int called = 0;
    float *input = pages(BYTES), *output = pages(BYTES);
    fill(input, ELEMENTS, 1);
    memset(output, 0x55, BYTES);
    const onepool_memory good = pointer_to("noisy", input, BYTES), good_output = pointer_to("clean", output, BYTES);
    onepool_memory in = good, out = good_output;
    in.release = out.release = no_call;
    in.user = out.user = &called;
    const onepool_memory in_called = in, out_called = out;

#define CREATE(status, part)                                                                        \
    do {                                                                                            \
        EXPECT(status, onepool_binding_create(session, &in, 1, &out, 1, 0, &binding), part);         \
        in = in_called, out = out_called;                                                           \
    } while (0)
    EXPECT(BAD, onepool_binding_create(session, &in, 1, &out, 1, 0, NULL), "`binding` is null");
    EXPECT(BAD, onepool_binding_create(session, &in, 1, &out, 1, 3, &binding), "`strict` is 3");
    EXPECT(BAD, onepool_binding_create(session, NULL, 1, &out, 1, 0, &binding), "`inputs` is null");
    EXPECT(BAD, onepool_binding_create(session, &in, 1, NULL, 1, 0, &binding), "`outputs` is null");
    EXPECT(BAD, onepool_binding_create(session, &in, (size_t)-1, &out, 1, 0, &binding), "`inputs` has");
    EXPECT(NO_HANDLE, onepool_binding_create(NULL, &in, 1, &out, 1, 0, &binding), "`session` is null");
    EXPECT(ONEPOOL_ERROR_WRONG_SHAPE, onepool_binding_create(session, NULL, 0, NULL, 0, 0, &binding), "\"noisy\"");
    const onepool_memory twice[2] = {in, in};
    EXPECT(BAD, onepool_binding_create(session, twice, 2, &out, 1, 0, &binding), "inputs[1]");
    onepool_memory sizes[2] = {in, in};
    sizes[1].struct_size = 8;
    EXPECT(BAD, onepool_binding_create(session, sizes, 2, &out, 1, 0, &binding), "[1].struct_size is 8");
    in.struct_size = 0;
    CREATE(BAD, "struct_size of 0");
    in.name = NULL;
    CREATE(BAD, "`inputs[0].name` is null");
    in.name = "loud";
    CREATE(ONEPOOL_ERROR_UNKNOWN_NAME, "\"loud\"");
    out.name = "noisy";
    CREATE(ONEPOOL_ERROR_UNKNOWN_NAME, "output \"noisy\"");
    in.kind = 5;
    in.release = NULL;
    CREATE(BAD, "`inputs[0].kind` is 5");
    out.kind = ONEPOOL_MEMORY_VALUE;
    out.release = NULL;
    CREATE(BAD, "`outputs[0].kind` is VALUE");
    in.kind = ONEPOOL_MEMORY_OWN;
    CREATE(BAD, "`inputs[0].release`");
    in.dtype = 24;
    CREATE(BAD, "`inputs[0].dtype` is 24");
    in.dtype = ONEPOOL_FLOAT16;
    CREATE(ONEPOOL_ERROR_WRONG_TYPE, "`inputs[0]`: \"noisy\" holds float32, got float16");
    out.dtype = ONEPOOL_INT8;
    CREATE(ONEPOOL_ERROR_WRONG_TYPE, "holds float32, got int8");
    in.data = NULL;
    CREATE(BAD, "`inputs[0].data` is null");
    out.data = NULL;
    CREATE(BAD, "`outputs[0].data` is null");
    in.bytes = (size_t)-1;
    CREATE(BAD, "`inputs[0].bytes`");
    in.bytes = BYTES - 1;
    CREATE(ONEPOOL_ERROR_TOO_SMALL, "\"noisy\" needs 49152 bytes, its memory has 49151");
    out.bytes = 0;
    CREATE(ONEPOOL_ERROR_TOO_SMALL, "\"clean\"");
    in.rank = 17;
    CREATE(BAD, "`inputs[0].dims`");
    in.dims = NULL;
    CREATE(BAD, "`inputs[0].dims` is null");
    in.dims = NULL, in.rank = 0;
    CREATE(ONEPOOL_ERROR_WRONG_SHAPE, "give the shape with the memory");
    in.rank = 0;
    CREATE(ONEPOOL_ERROR_WRONG_SHAPE, "expected shape");
    const int64_t huge[4] = {INT64_MAX, 3, INT64_MAX, 8}, negative[4] = {1, 3, -1, 64}, channels[4] = {1, 4, 64, 64};
    in.dims = huge;
    CREATE(ONEPOOL_ERROR_WRONG_SHAPE, "too many elements");
    in.dims = negative;
    CREATE(ONEPOOL_ERROR_WRONG_SHAPE, "impossible size -1");
    in.dims = channels;
    CREATE(ONEPOOL_ERROR_WRONG_SHAPE, "expected shape");
    out.dims = channels;
    CREATE(ONEPOOL_ERROR_WRONG_SHAPE, "\"clean\" has the shape");
    const int64_t strides[4] = {3 * SIDE * SIDE, 1, SIDE * 3, 3};
    in.strides = strides;
    CREATE(ONEPOOL_ERROR_WRONG_SHAPE, "must be compact");
    out.strides = strides;
    CREATE(ONEPOOL_ERROR_WRONG_SHAPE, "must be compact");
    in.kind = ONEPOOL_MEMORY_DLPACK, in.data = NULL, in.release = NULL;
    CREATE(BAD, "`inputs[0].data` is null");
    in.kind = ONEPOOL_MEMORY_REGION, in.release = NULL;
    CREATE(NO_HANDLE, "`inputs[0].region` is null");
    in.kind = ONEPOOL_MEMORY_REGION, in.release = NULL, in.region = (onepool_region *)session;
    CREATE(NO_HANDLE, "expected a onepool_region");
    onepool_region *region = NULL;
    OK(onepool_region_create(BYTES, &region));
    in.kind = ONEPOOL_MEMORY_REGION, in.release = NULL, in.region = region, in.offset = 1;
    CREATE(BAD, "leaves its region");
    in.kind = ONEPOOL_MEMORY_REGION, in.release = NULL, in.region = region, in.offset = (size_t)-1, in.bytes = 4;
    CREATE(BAD, "leaves its region");
    in.kind = ONEPOOL_MEMORY_REGION, in.release = NULL, in.region = region, in.offset = 4, in.bytes = 0;
    CREATE(ONEPOOL_ERROR_TOO_SMALL, "\"noisy\"");
    OK(onepool_region_free(region));
    in.kind = ONEPOOL_MEMORY_VALUE, in.release = NULL, in.bytes = 4;
    CREATE(ONEPOOL_ERROR_TOO_SMALL, "needs 49152 bytes, its memory has 4");
    in.kind = ONEPOOL_MEMORY_VALUE, in.release = NULL, in.name = "nosy";
    CREATE(ONEPOOL_ERROR_UNKNOWN_NAME, "there is no input \"nosy\"; the inputs are \"noisy\"");
    in.kind = ONEPOOL_MEMORY_VALUE, in.release = NULL, in.dims = NULL, in.rank = 0;
    CREATE(BAD, "`inputs[0].dims` are needed");
    CHECK(binding == NULL && called == 0);

    EXPECT(BAD, onepool_session_plan_output(session, &good, 1, "clean", NULL), "`info`");
    EXPECT(BAD, onepool_session_plan_output(session, &good, 1, NULL, &info), "`name` is null");
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_session_plan_output(session, &good, 1, "noisy", &info), "\"noisy\"");
    EXPECT(BAD, onepool_session_plan_output(session, NULL, 1, "clean", &info), "`inputs`");
    EXPECT(NO_HANDLE, onepool_session_plan_output(NULL, &good, 1, "clean", &info), "`session`");

    OK(onepool_binding_create(session, &good, 1, &good_output, 1, 0, &binding));
    EXPECT(BAD, onepool_binding_rebind_input(binding, NULL), "`memory` is null");
    EXPECT(BAD, onepool_binding_rebind_output(binding, NULL), "`memory` is null");
    EXPECT(NO_HANDLE, onepool_binding_rebind_input(NULL, &good), "`binding`");
    EXPECT(NO_HANDLE, onepool_binding_rebind_output(NULL, &good_output), "`binding`");
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_rebind_input(binding, &good_output), "\"clean\"");
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_rebind_output(binding, &good), "\"noisy\"");
    onepool_memory value = good;
    EXPECT(BAD, onepool_binding_set_input(binding, &value), "`value.kind` is 1");
    EXPECT(BAD, onepool_binding_set_input(binding, NULL), "`value` is null");
    value.kind = ONEPOOL_MEMORY_VALUE;
    EXPECT(NO_HANDLE, onepool_binding_set_input(NULL, &value), "`binding`");
    value.name = "loud";
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_set_input(binding, &value), "\"loud\"");
    const int64_t wide[4] = {1, 3, SIDE / 2, SIDE * 2};
    value.name = "noisy", value.dims = wide;
    EXPECT(ONEPOOL_ERROR_WRONG_SHAPE, onepool_binding_set_input(binding, &value), "expected shape");
    EXPECT(BAD, onepool_binding_input_info(binding, NULL, &info), "`name`");
    EXPECT(BAD, onepool_binding_input_info(binding, "noisy", NULL), "`info`");
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_input_info(binding, "clean", &info), "clean");
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_output_info(binding, "noisy", &info), "noisy");
    EXPECT(NO_HANDLE, onepool_binding_input_info(NULL, "noisy", &info), "`binding`");
    EXPECT(NO_HANDLE, onepool_binding_output_info(NULL, "clean", &info), "`binding`");
    CHECK(info.rank == 0);
    EXPECT(BAD, onepool_binding_get_output(binding, NULL, output, BYTES), "`name`");
    EXPECT(BAD, onepool_binding_get_output(binding, "clean", NULL, BYTES), "`data`");
    EXPECT(BAD, onepool_binding_get_output(binding, "clean", output, (size_t)-1), "`bytes`");
    EXPECT(ONEPOOL_ERROR_NOT_RUN, onepool_binding_get_output(binding, "clean", output, BYTES), "run first");
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_get_output(binding, "loud", output, BYTES), "loud");
    EXPECT(NO_HANDLE, onepool_binding_get_output(NULL, "clean", output, BYTES), "`binding`");
    onepool_view *view = NULL;
    EXPECT(BAD, onepool_binding_map_input(binding, "noisy", NULL), "`view`");
    EXPECT(BAD, onepool_binding_map_output(binding, NULL, &view), "`name`");
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_map_input(binding, "clean", &view), "clean");
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, onepool_binding_map_output(binding, "noisy", &view), "noisy");
    EXPECT(NO_HANDLE, onepool_binding_map_input(NULL, "noisy", &view), "`binding`");
    EXPECT(NO_HANDLE, onepool_binding_map_output(NULL, "clean", &view), "`binding`");
    struct DLManagedTensorVersioned *tensor = NULL;
    EXPECT(BAD, onepool_binding_output_dlpack(binding, "clean", 0, NULL), "`tensor`");
    EXPECT(BAD, onepool_binding_output_dlpack(binding, "clean", 2, &tensor), "`copy` is 2");
    EXPECT(BAD, onepool_binding_output_dlpack(binding, NULL, 0, &tensor), "`name`");
    EXPECT(NO_HANDLE, onepool_binding_output_dlpack(NULL, "clean", 0, &tensor), "`binding`");
    CHECK(tensor == NULL && view == NULL);

    onepool_verdicts *verdicts = NULL;
    onepool_verdict verdict = ONEPOOL_VERDICT_INIT;
    size_t count = 0;
    EXPECT(BAD, onepool_binding_verdicts(binding, NULL), "`verdicts`");
    EXPECT(NO_HANDLE, onepool_binding_verdicts(NULL, &verdicts), "`binding`");
    OK(onepool_binding_verdicts(binding, &verdicts));
    EXPECT(BAD, onepool_verdicts_count(verdicts, NULL), "`count`");
    EXPECT(NO_HANDLE, onepool_verdicts_count(NULL, &count), "`verdicts`");
    EXPECT(BAD, onepool_verdicts_get(verdicts, 2, &verdict), "`index` is 2");
    EXPECT(BAD, onepool_verdicts_get(verdicts, 0, NULL), "`verdict`");
    EXPECT(NO_HANDLE, onepool_verdicts_get(NULL, 0, &verdict), "`verdicts`");
    verdict.struct_size = 0;
    EXPECT(BAD, onepool_verdicts_get(verdicts, 0, &verdict), "struct_size of 0");
    OK(onepool_verdicts_free(verdicts));
    EXPECT(NO_HANDLE, onepool_verdicts_free(verdicts), "was freed");

    onepool_run *run = NULL;
    onepool_run_options options = ONEPOOL_RUN_OPTIONS_INIT;
    EXPECT(NO_HANDLE, onepool_binding_run(NULL, NULL), "`binding`");
    options.struct_size = 0;
    EXPECT(BAD, onepool_binding_run(binding, &options), "struct_size");
    EXPECT(BAD, onepool_binding_start(binding, &options, NULL, NULL, &run), "struct_size");
    EXPECT(BAD, onepool_binding_start(binding, NULL, NULL, NULL, NULL), "`run` is null");
    EXPECT(NO_HANDLE, onepool_binding_start(NULL, NULL, NULL, NULL, &run), "`binding`");
    EXPECT(NO_HANDLE, onepool_run_wait(NULL, 0), "`run` is null");
    EXPECT(NO_HANDLE, onepool_run_cancel(NULL), "`run` is null");
    EXPECT(NO_HANDLE, onepool_run_wait((onepool_run *)binding, 0), "is a onepool_binding");
    EXPECT(NO_HANDLE, onepool_run_free((onepool_run *)binding), "is a onepool_binding");
    OK(onepool_run_free(NULL));
    onepool_cancel *cancel = NULL;
    EXPECT(BAD, onepool_cancel_create(NULL), "`cancel`");
    EXPECT(NO_HANDLE, onepool_cancel_trigger(NULL), "`cancel`");
    OK(onepool_cancel_create(&cancel));
    OK(onepool_cancel_free(cancel));
    EXPECT(NO_HANDLE, onepool_cancel_free(cancel), "was freed");
    EXPECT(NO_HANDLE, onepool_cancel_trigger(cancel), "was freed");
    EXPECT(BAD, onepool_live_handles(NULL), "`count`");

    /* After all of that it runs, and before it no byte of the caller's was touched. */
    for (size_t i = 0; i < BYTES; i++) {
        CHECK(((unsigned char *)output)[i] == 0x55);
    }
    OK(onepool_binding_run(binding, NULL));
    OK(onepool_binding_free(binding));
    EXPECT(NO_HANDLE, onepool_binding_free(binding), "was freed");
    EXPECT(NO_HANDLE, onepool_binding_run(binding, NULL), "was freed");
    OK(onepool_binding_free(NULL));
    OK(onepool_session_free(session));
    free(input), free(output);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    CHECK(strcmp(onepool_last_error(), "") == 0);
    CHECK(strlen(onepool_version()) >= 5);
    CHECK(onepool_status_name(1000) == NULL && onepool_dtype_name(1000) == NULL && onepool_dtype_bytes(1000) == 0);
    CHECK(strcmp(onepool_dtype_name(ONEPOOL_BFLOAT16), "bfloat16") == 0 && onepool_dtype_bytes(ONEPOOL_BFLOAT16) == 2);
    sessions(argv[1], argv[2]);
    regions();
    bindings(argv[1], argv[2]);
    nothing_left();
    puts("all of bad_input passed");
    return 0;
}
