/* frames MODEL DEVICE: a camera's frame into the denoiser, its result into a part of a screen. */
#include "check.h"

enum { WIDTH = 64, HEIGHT = 48, STRIDE = 96, SCREEN = 128, PIXEL = 4 };

/* Bytes in no order. */
static unsigned char *pattern(size_t bytes, uint64_t seed) {
    unsigned char *made = pages(bytes);
    for (size_t i = 0; i < bytes; i++) {
        made[i] = (unsigned char)((i + seed) * 2654435761u >> 7);
    }
    return made;
}

static onepool_status open_with(const char *model, const char *device, const onepool_frame *frames, size_t count,
                                onepool_session **session) {
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;
    const uint64_t threshold = 0;
    options.devices = &device;
    options.device_count = 1;
    options.copy_threshold = &threshold;
    options.frames = frames;
    options.frame_count = count;
    return onepool_session_open(model, &options, session);
}

static onepool_memory bytes_at(const char *name, void *data, size_t bytes) {
    onepool_memory made = ONEPOOL_MEMORY_INIT;
    made.name = name;
    made.kind = ONEPOOL_MEMORY_POINTER;
    made.dtype = ONEPOOL_UINT8;
    made.data = data;
    made.bytes = bytes;
    return made;
}

/* NV12 in two memories; BGRA in a rectangle of a screen. */
static void film(const char *model, const char *device) {
    const uint64_t strides[2] = {STRIDE, STRIDE};
    const uint32_t memories[2] = {0, 1}, crop[4] = {32, 16, WIDTH, HEIGHT};
    onepool_frame frames[2] = {ONEPOOL_FRAME_INIT, ONEPOOL_FRAME_INIT};
    frames[0].name = "noisy";
    frames[0].format = ONEPOOL_FORMAT_NV12;
    frames[0].width = WIDTH, frames[0].height = HEIGHT;
    frames[0].strides = strides, frames[0].memories = memories, frames[0].plane_count = 2;
    frames[0].matrix = ONEPOOL_MATRIX_BT601, frames[0].range = ONEPOOL_RANGE_FULL;
    frames[1].name = "clean";
    frames[1].is_output = 1;
    frames[1].format = ONEPOOL_FORMAT_BGRA8;
    frames[1].width = SCREEN, frames[1].height = SCREEN;
    memcpy(frames[1].crop, crop, sizeof(crop));
    frames[1].channels = ONEPOOL_CHANNELS_RGB, frames[1].layout = ONEPOOL_LAYOUT_NCHW;
    onepool_session *session = NULL;
    OK(open_with(model, device, frames, 2, &session));
    onepool_io_info io = ONEPOOL_IO_INFO_INIT;
    size_t inputs = 0;
    OK(onepool_session_input_count(session, &inputs));
    CHECK(inputs == 2);
    OK(onepool_session_input(session, 1, &io));
    CHECK(strcmp(io.name, "noisy:1") == 0 && io.dtype == ONEPOOL_UINT8 && io.rank == 1);
    CHECK(io.dims[0] == STRIDE * (HEIGHT / 2 - 1) + WIDTH);

    unsigned char *luma = pattern(STRIDE * HEIGHT, 0), *chroma = pattern(STRIDE * HEIGHT / 2, 1 << 20);
    unsigned char *screen = pages(SCREEN * SCREEN * PIXEL);
    memset(screen, 7, SCREEN * SCREEN * PIXEL);
    onepool_memory in[2] = {bytes_at("noisy:0", luma, STRIDE * HEIGHT), bytes_at("noisy:1", chroma, STRIDE * HEIGHT / 2)};
    onepool_memory out = bytes_at("clean", screen, SCREEN * SCREEN * PIXEL);
    onepool_binding *binding = NULL;
    OK(onepool_binding_create(session, in, 2, &out, 1, ONEPOOL_STRICT_ON, &binding));
    OK(onepool_binding_run(binding, NULL));
    onepool_verdicts *verdicts = NULL;
    onepool_verdict verdict = ONEPOOL_VERDICT_INIT;
    OK(onepool_binding_verdicts(binding, &verdicts));
    for (size_t i = 0; onepool_verdicts_get(verdicts, i, &verdict) == ONEPOOL_OK; i++) {
        CHECK(verdict.cpu_copied == 0);
    }
    OK(onepool_verdicts_free(verdicts));
    uint64_t hash = 0xcbf29ce484222325u;
    for (int y = 0; y < SCREEN; y++) {
        for (int x = 0; x < SCREEN; x++) {
            const unsigned char *pixel = screen + (y * SCREEN + x) * PIXEL;
            if (x >= 32 && x < 32 + WIDTH && y >= 16 && y < 16 + HEIGHT) {
                CHECK(pixel[3] == 255);
                for (int c = 0; c < PIXEL; c++) {
                    hash = (hash ^ pixel[c]) * 0x100000001b3u;
                }
            } else {
                CHECK(pixel[0] == 7 && pixel[1] == 7 && pixel[2] == 7 && pixel[3] == 7);
            }
        }
    }
    printf("hash %016llx\n", (unsigned long long)hash);
    OK(onepool_binding_free(binding));
    OK(onepool_session_free(session));
    free(luma), free(chroma), free(screen);
}

/* A picture of bytes is the tensor of its numbers, to the last bit. */
static void numbers(const char *model, const char *device) {
    onepool_frame frame = ONEPOOL_FRAME_INIT;
    frame.name = "noisy";
    frame.format = ONEPOOL_FORMAT_RGB8;
    frame.width = SIDE, frame.height = SIDE;
    onepool_session *session = NULL, *plain = open_session(model, device);
    OK(open_with(model, device, &frame, 1, &session));
    unsigned char *picture = pattern(ELEMENTS, 5);
    float *values = pages(BYTES), *expected = pages(BYTES), *got = pages(BYTES);
    for (int i = 0; i < ELEMENTS; i++) {
        const int channel = i / (SIDE * SIDE), pixel = i % (SIDE * SIDE);
        values[i] = (float)picture[pixel * 3 + channel] * (1.0f / 255.0f);
    }
    by_value(plain, values, expected);
    onepool_memory in = bytes_at("noisy", picture, ELEMENTS);
    onepool_binding *binding = NULL;
    OK(onepool_binding_create(session, &in, 1, NULL, 0, ONEPOOL_STRICT_ON, &binding));
    OK(onepool_binding_run(binding, NULL));
    OK(onepool_binding_get_output(binding, "clean", got, BYTES));
    CHECK(memcmp(got, expected, BYTES) == 0);
    OK(onepool_binding_free(binding));
    /* One byte is missing. */
    in.bytes = ELEMENTS - 1;
    binding = NULL;
    EXPECT(ONEPOOL_ERROR_TOO_SMALL, onepool_binding_create(session, &in, 1, NULL, 0, 0, &binding), "noisy");
    CHECK(binding == NULL);
    OK(onepool_session_free(session));
    OK(onepool_session_free(plain));
    free(picture), free(values), free(expected), free(got);
}

static void refused(const char *model, const char *device) {
    const onepool_status bad = ONEPOOL_ERROR_INVALID_ARGUMENT;
    const uint64_t one = 8;
    onepool_session *session = NULL;
    onepool_frame good = ONEPOOL_FRAME_INIT, frame;
    good.name = "noisy";
    good.format = ONEPOOL_FORMAT_RGB8;
    good.width = SIDE, good.height = SIDE;
#define REFUSED(change, part)                                            \
    do {                                                                 \
        frame = good;                                                    \
        change;                                                          \
        EXPECT(bad, open_with(model, device, &frame, 1, &session), part); \
    } while (0)
    REFUSED(frame.name = NULL, "frames[0].name");
    REFUSED(frame.format = 0, "frames[0].format");
    REFUSED(frame.format = 12, "frames[0].format");
    REFUSED(frame.is_output = 2, "frames[0].is_output");
    REFUSED(frame.width = 0, "0");
    REFUSED(frame.width = 1u << 31, "noisy");
    REFUSED(frame.strides = &one; frame.plane_count = 1, "8");
    REFUSED(frame.strides = &one; frame.plane_count = 0, "strides");
    REFUSED(frame.strides = &one; frame.plane_count = (size_t)-1, "strides");
    REFUSED(frame.matrix = 3, "frames[0].matrix");
    REFUSED(frame.range = 3, "frames[0].range");
    REFUSED(frame.filter = 2, "frames[0].filter");
    REFUSED(frame.layout = 3, "frames[0].layout");
    REFUSED(frame.channels = 6, "frames[0].channels");
    REFUSED(frame.reserved = 1, "frames[0].reserved");
    REFUSED(frame.crop[0] = SIDE; frame.crop[2] = 1; frame.crop[3] = 1, "noisy");
    REFUSED(frame.struct_size = 8, "struct_size");
    frame = good;
    frame.name = "nothing";
    EXPECT(ONEPOOL_ERROR_UNKNOWN_NAME, open_with(model, device, &frame, 1, &session), "nothing");
    EXPECT(bad, open_with(model, device, NULL, 1, &session), "frames");
    EXPECT(bad, open_with(model, device, &frame, 257, &session), "frames");
    CHECK(session == NULL);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    film(argv[1], argv[2]);
    numbers(argv[1], argv[2]);
    refused(argv[1], argv[2]);
    nothing_left();
    puts("all of frames passed");
    return 0;
}
