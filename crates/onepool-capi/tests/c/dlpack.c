/* dlpack MODEL DEVICE: tensors of other libraries, in and out. */
#define ONEPOOL_DEFINE_DLPACK
#include "check.h"

static int deleted;

static void count_up(DLManagedTensorVersioned *self) {
    CHECK(self->manager_ctx == &deleted);
    deleted++;
}

static int64_t shape[4] = {1, 3, SIDE, SIDE};

static DLManagedTensorVersioned tensor(float *data) {
    DLManagedTensorVersioned t;
    memset(&t, 0, sizeof t);
    t.version.major = 1;
    t.manager_ctx = &deleted;
    t.deleter = count_up;
    t.dl_tensor.data = data;
    t.dl_tensor.device.device_type = 1;
    t.dl_tensor.ndim = 4;
    t.dl_tensor.dtype.code = 2;
    t.dl_tensor.dtype.bits = 32;
    t.dl_tensor.dtype.lanes = 1;
    t.dl_tensor.shape = shape;
    return t;
}

static onepool_memory bound(const char *name, DLManagedTensorVersioned *t) {
    onepool_memory memory = ONEPOOL_MEMORY_INIT;
    memory.name = name;
    memory.kind = ONEPOOL_MEMORY_DLPACK;
    memory.data = t;
    return memory;
}

static onepool_session *session;
static DLManagedTensorVersioned input, output;

/* What binding the tensors ends with, which takes none of them. */
static void refused(onepool_status status, const char *part) {
    const onepool_memory in = bound("noisy", &input), out = bound("clean", &output);
    onepool_binding *binding = NULL;
    EXPECT(status, onepool_binding_create(session, &in, 1, &out, 1, 0, &binding), part);
    CHECK(binding == NULL && deleted == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    session = open_session(argv[1], argv[2]);
    float *from = pages(BYTES + 4096), *to = pages(BYTES), *expected = malloc(BYTES);
    fill(from, ELEMENTS, 1);
    by_value(session, from, expected);
    input = tensor(from);
    output = tensor(to);
    const DLManagedTensorVersioned good = input, good_output = output;

    input.version.major = 2;
    refused(ONEPOOL_ERROR_INVALID_ARGUMENT, "`inputs[0].data` is of DLPack 2.0");
    input = good, input.dl_tensor.device.device_type = 2;
    refused(ONEPOOL_ERROR_INVALID_ARGUMENT, "device type 2");
    input = good, input.dl_tensor.dtype.lanes = 2;
    refused(ONEPOOL_ERROR_WRONG_TYPE, "lanes: 2");
    input = good, input.dl_tensor.dtype.bits = 64;
    refused(ONEPOOL_ERROR_WRONG_TYPE, "float32, got float64");
    input = good, input.dl_tensor.dtype.code = 0, input.dl_tensor.dtype.bits = 4;
    refused(ONEPOOL_ERROR_WRONG_TYPE, "packs elements of 4 bits");
    input = good, input.dl_tensor.ndim = -1;
    refused(ONEPOOL_ERROR_INVALID_ARGUMENT, "negative rank");
    input = good, input.dl_tensor.ndim = 17;
    refused(ONEPOOL_ERROR_INVALID_ARGUMENT, "at most 16");
    input = good, input.dl_tensor.ndim = 3;
    refused(ONEPOOL_ERROR_WRONG_SHAPE, "expected shape");
    input = good, input.dl_tensor.shape = NULL;
    refused(ONEPOOL_ERROR_INVALID_ARGUMENT, "null");
    input = good, input.dl_tensor.data = NULL;
    refused(ONEPOOL_ERROR_INVALID_ARGUMENT, "no data");
    input = good, input.dl_tensor.byte_offset = UINT64_MAX;
    refused(ONEPOOL_ERROR_INVALID_ARGUMENT, "byte_offset");
    int64_t strides[4] = {3 * SIDE * SIDE, 1, 3 * SIDE, 3};
    input = good, input.dl_tensor.strides = strides;
    refused(ONEPOOL_ERROR_WRONG_SHAPE, "compact");
    int64_t negative[4] = {1, 3, -SIDE, SIDE};
    input = good, input.dl_tensor.shape = negative;
    refused(ONEPOOL_ERROR_WRONG_SHAPE, "impossible size");
    input = good, output.flags = 1;
    refused(ONEPOOL_ERROR_INVALID_ARGUMENT, "`outputs[0].data` is read-only");
    output = good_output, output.dl_tensor.dtype.code = 1;
    refused(ONEPOOL_ERROR_WRONG_TYPE, "got uint32");
    output = good_output;

    /* In: strides of a dimension of 1 do not matter, and an offset counts. */
    int64_t compact[4] = {7, SIDE * SIDE, SIDE, 1};
    memmove((char *)from + 4096, from, BYTES);
    input.dl_tensor.byte_offset = 4096;
    input.dl_tensor.strides = compact;
    input.flags = 1;
    onepool_memory in = bound("noisy", &input), out = bound("clean", &output);
    onepool_binding *binding = NULL;
    OK(onepool_binding_create(session, &in, 1, &out, 1, ONEPOOL_STRICT_ON, &binding));
    OK(onepool_binding_run(binding, NULL));
    CHECK(memcmp(to, expected, BYTES) == 0 && deleted == 0);
    OK(onepool_binding_free(binding));
    CHECK(deleted == 2);

    /* Out: in place, and a copy. */
    onepool_memory value = pointer_to("noisy", (char *)from + 4096, BYTES);
    value.kind = ONEPOOL_MEMORY_VALUE;
    OK(onepool_binding_create(session, &value, 1, NULL, 0, 0, &binding));
    DLManagedTensorVersioned *t = NULL, *copy = NULL;
    EXPECT(ONEPOOL_ERROR_NOT_RUN, onepool_binding_output_dlpack(binding, "clean", 1, &t), "run first");
    OK(onepool_binding_run(binding, NULL));
    OK(onepool_binding_output_dlpack(binding, "clean", 0, &t));
    CHECK(t->version.major == 1 && t->flags == 1 && t->dl_tensor.ndim == 4 && t->dl_tensor.byte_offset == 0);
    CHECK(t->dl_tensor.dtype.code == 2 && t->dl_tensor.dtype.bits == 32 && t->dl_tensor.dtype.lanes == 1);
    CHECK(memcmp(t->dl_tensor.shape, shape, sizeof shape) == 0 && t->dl_tensor.strides[1] == SIDE * SIDE);
    CHECK(memcmp(t->dl_tensor.data, expected, BYTES) == 0);
    OK(onepool_binding_output_dlpack(binding, "clean", 1, &copy));
    CHECK(copy->flags == 3 && copy->dl_tensor.data != t->dl_tensor.data);
    EXPECT(ONEPOOL_ERROR_BUSY, onepool_binding_run(binding, NULL), "");
    t->deleter(t);
    OK(onepool_binding_run(binding, NULL));
    OK(onepool_binding_output_dlpack(binding, "clean", 0, &t));
    OK(onepool_binding_free(binding));
    CHECK(memcmp(t->dl_tensor.data, expected, BYTES) == 0);
    CHECK(memcmp(copy->dl_tensor.data, expected, BYTES) == 0);
    t->deleter(t);
    copy->deleter(copy);

    OK(onepool_session_free(session));
    nothing_left();
    free(from), free(to), free(expected);
    puts("all of dlpack passed");
    return 0;
}
