/* memory MODEL DEVICE: every kind of memory, its verdicts and results. */
#include "check.h"

static void count_up(void *user) { ++*(int *)user; }

/* All verdicts: nothing is copied where `in_place`. */
static void look_at_verdicts(onepool_binding *binding, size_t expected, int in_place) {
    onepool_verdicts *verdicts = NULL;
    OK(onepool_binding_verdicts(binding, &verdicts));
    size_t count = 0;
    OK(onepool_verdicts_count(verdicts, &count));
    CHECK(count == expected);
    for (size_t i = 0; i < count; i++) {
        onepool_verdict verdict = ONEPOOL_VERDICT_INIT;
        OK(onepool_verdicts_get(verdicts, i, &verdict));
        puts(verdict.sentence);
        CHECK(verdict.bytes == BYTES && strlen(verdict.reason) > 0);
        CHECK(strcmp(verdict.tensor, "noisy") == 0 || strcmp(verdict.tensor, "clean") == 0);
        if (in_place) {
            CHECK(verdict.path == ONEPOOL_PATH_HOST || verdict.path == ONEPOOL_PATH_IMPORTED);
            CHECK(verdict.cpu_copied == 0 && verdict.device_copied == 0);
        } else if (verdict.path == ONEPOOL_PATH_STAGED) {
            CHECK(verdict.cpu_copied == BYTES);
        }
    }
    OK(onepool_verdicts_free(verdicts));
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    nothing_left();
    onepool_session *session = open_session(argv[1], argv[2]);

    size_t count = 0;
    OK(onepool_session_input_count(session, &count));
    CHECK(count == 1);
    OK(onepool_session_output_count(session, &count));
    CHECK(count == 1);
    OK(onepool_session_device_count(session, &count));
    CHECK(count >= 1);
    const char *device = NULL;
    OK(onepool_session_device(session, 0, &device));
    CHECK(strlen(device) > 0);
    onepool_io_info io = ONEPOOL_IO_INFO_INIT;
    OK(onepool_session_input(session, 0, &io));
    CHECK(strcmp(io.name, "noisy") == 0 && io.dtype == ONEPOOL_FLOAT32 && io.has_shape == 1 && io.rank == 4);
    CHECK(io.dims[0] == -1 && strcmp(io.symbols[0], "batch") == 0 && io.dims[1] == 3 && io.symbols[1] == NULL);
    OK(onepool_session_output(session, 0, &io));
    CHECK(strcmp(io.name, "clean") == 0);

    float *input = pages(BYTES), *output = pages(BYTES), *expected = malloc(BYTES);
    fill(input, ELEMENTS, 1);
    by_value(session, input, expected);
    CHECK(expected[0] != expected[1]);

    /* Shapes before there is memory. */
    onepool_memory in = pointer_to("noisy", input, BYTES), out = pointer_to("clean", output, BYTES);
    onepool_tensor_info info = ONEPOOL_TENSOR_INFO_INIT;
    OK(onepool_session_plan_output(session, &in, 1, "clean", &info));
    CHECK(info.rank == 4 && memcmp(info.dims, DIMS, sizeof DIMS) == 0 && info.bytes == BYTES);

    /* By reference: no copy. */
    int released = 0;
    in.release = out.release = count_up;
    in.user = out.user = &released;
    onepool_binding *binding = NULL;
    OK(onepool_binding_create(session, &in, 1, &out, 1, ONEPOOL_STRICT_ON, &binding));
    look_at_verdicts(binding, 2, 1);
    OK(onepool_binding_input_info(binding, "noisy", &info));
    CHECK(info.dtype == ONEPOOL_FLOAT32 && info.bytes == BYTES);
    OK(onepool_binding_output_info(binding, "clean", &info));
    CHECK(info.bytes == BYTES);
    for (int run = 0; run < 3; run++) {
        memset(output, 0xff, BYTES);
        OK(onepool_binding_run(binding, NULL));
        CHECK(memcmp(output, expected, BYTES) == 0);
    }
    /* What changed in place is seen. */
    float *other_expected = malloc(BYTES);
    fill(input, ELEMENTS, 2);
    by_value(session, input, other_expected);
    OK(onepool_binding_run(binding, NULL));
    CHECK(memcmp(output, other_expected, BYTES) == 0);
    CHECK(memcmp(output, expected, BYTES) != 0);

    /* Other memory, and back. */
    float *input2 = pages(BYTES), *output2 = pages(BYTES);
    fill(input2, ELEMENTS, 1);
    onepool_memory in2 = pointer_to("noisy", input2, BYTES), out2 = pointer_to("clean", output2, BYTES);
    in2.release = out2.release = count_up;
    in2.user = out2.user = &released;
    OK(onepool_binding_rebind_input(binding, &in2));
    OK(onepool_binding_rebind_output(binding, &out2));
    memset(output, 0, BYTES);
    OK(onepool_binding_run(binding, NULL));
    CHECK(memcmp(output2, expected, BYTES) == 0 && output[0] == 0.0f);
    /* A call that fails takes nothing. */
    int failed = 0;
    onepool_memory bad = in2;
    bad.user = &failed;
    bad.bytes = BYTES - 4;
    EXPECT(ONEPOOL_ERROR_TOO_SMALL, onepool_binding_rebind_input(binding, &bad), "\"noisy\"");
    OK(onepool_binding_run(binding, NULL));
    CHECK(memcmp(output2, expected, BYTES) == 0);
    OK(onepool_binding_free(binding));
    CHECK(released == 4 && failed == 0);

    /* An address that no page begins at: in place on the CPU, and right everywhere. */
    char *odd = pages(BYTES + 8192);
    memcpy(odd + 52, input2, BYTES);
    in = pointer_to("noisy", odd + 52, BYTES);
    out = pointer_to("clean", output, BYTES);
    OK(onepool_binding_create(session, &in, 1, &out, 1, ONEPOOL_STRICT_OFF, &binding));
    look_at_verdicts(binding, 2, 0);
    OK(onepool_binding_run(binding, NULL));
    CHECK(memcmp(output, expected, BYTES) == 0);
    OK(onepool_binding_free(binding));

    /* A region for both. */
    onepool_region *region = NULL;
    OK(onepool_region_create(2 * BYTES, &region));
    OK(onepool_region_bytes(region, &count));
    CHECK(count == 2 * BYTES);
    in = pointer_to("noisy", NULL, BYTES);
    in.kind = ONEPOOL_MEMORY_REGION;
    in.region = region;
    out = in;
    out.name = "clean";
    out.offset = BYTES;
    out.bytes = 0;
    OK(onepool_binding_create(session, &in, 1, &out, 1, ONEPOOL_STRICT_ON, &binding));
    look_at_verdicts(binding, 2, 1);
    onepool_view *view = NULL;
    void *data = NULL;
    OK(onepool_region_map(region, 0, BYTES, ONEPOOL_READ_WRITE, &view));
    OK(onepool_view_data(view, &data, &count));
    CHECK(count == BYTES);
    memcpy(data, input2, BYTES);
    EXPECT(ONEPOOL_ERROR_BUSY, onepool_binding_run(binding, NULL), "");
    onepool_view *second = NULL;
    EXPECT(ONEPOOL_ERROR_BUSY, onepool_region_map(region, 0, 16, ONEPOOL_READ, &second), "");
    OK(onepool_view_free(view));
    OK(onepool_binding_run(binding, NULL));
    OK(onepool_region_map(region, BYTES, BYTES, ONEPOOL_READ, &view));
    /* The view keeps the pages. */
    OK(onepool_binding_free(binding));
    OK(onepool_region_free(region));
    OK(onepool_view_data(view, &data, &count));
    CHECK(memcmp(data, expected, BYTES) == 0);
    OK(onepool_view_free(view));

    /* The library's own memory. */
    in = pointer_to("noisy", NULL, 0);
    in.kind = ONEPOOL_MEMORY_OWN;
    OK(onepool_binding_create(session, &in, 1, NULL, 0, 0, &binding));
    look_at_verdicts(binding, 0, 0);
    EXPECT(ONEPOOL_ERROR_NOT_RUN, onepool_binding_get_output(binding, "clean", output, BYTES), "run first");
    onepool_memory value = pointer_to("noisy", input2, BYTES);
    value.kind = ONEPOOL_MEMORY_VALUE;
    OK(onepool_binding_set_input(binding, &value));
    OK(onepool_binding_run(binding, NULL));
    memset(output, 0, BYTES);
    OK(onepool_binding_get_output(binding, "clean", output, BYTES));
    CHECK(memcmp(output, expected, BYTES) == 0);
    EXPECT(ONEPOOL_ERROR_TOO_SMALL, onepool_binding_get_output(binding, "clean", output, BYTES - 4), "clean");
    OK(onepool_binding_map_input(binding, "noisy", &view));
    OK(onepool_view_data(view, &data, &count));
    fill(data, ELEMENTS, 2);
    EXPECT(ONEPOOL_ERROR_BUSY, onepool_binding_run(binding, NULL), "");
    OK(onepool_view_free(view));
    OK(onepool_binding_run(binding, NULL));
    OK(onepool_binding_map_output(binding, "clean", &view));
    OK(onepool_view_data(view, &data, &count));
    CHECK(count == BYTES && memcmp(data, other_expected, BYTES) == 0);
    OK(onepool_view_free(view));
    /* A session may go before its bindings. */
    OK(onepool_session_free(session));
    OK(onepool_binding_run(binding, NULL));
    OK(onepool_binding_free(binding));

    nothing_left();
    free(input), free(output), free(expected), free(other_expected), free(input2), free(output2), free(odd);
    puts("all of memory passed");
    return 0;
}
