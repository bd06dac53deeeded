/* denoise MODEL DEVICE INPUT OUTPUT: takes the noise out of raw float32 pixels, [3, 64, 64], in place on this program's memory. */
#include <stdio.h>
#include <stdlib.h>

#include <onepool.h>

static void check(onepool_status status) {
    if (status != ONEPOOL_OK) {
        fprintf(stderr, "%s: %s\n", onepool_status_name(status), onepool_last_error());
        exit(1);
    }
}

static void transfer(const char *path, const char *mode, float *pixels, size_t bytes) {
    FILE *file = fopen(path, mode);
    size_t done = !file ? 0 : mode[0] == 'r' ? fread(pixels, 1, bytes, file) : fwrite(pixels, 1, bytes, file);
    if (done != bytes || fclose(file) != 0) {
        fprintf(stderr, "%s: not %zu bytes\n", path, bytes);
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        return 2;
    }
    const char *device = argv[2];
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    onepool_session *session = NULL;
    check(onepool_session_open(argv[1], &options, &session));

    /* Whole pages of this program's own, which devices can import. */
    const int64_t dims[4] = {1, 3, 64, 64};
    const size_t bytes = 3 * 64 * 64 * sizeof(float);
    float *noisy = aligned_alloc(4096, bytes), *clean = aligned_alloc(4096, bytes);
    transfer(argv[3], "rb", noisy, bytes);

    onepool_memory in = ONEPOOL_MEMORY_INIT, out = ONEPOOL_MEMORY_INIT;
    in.name = "noisy", in.kind = ONEPOOL_MEMORY_POINTER, in.dtype = ONEPOOL_FLOAT32;
    in.data = noisy, in.bytes = bytes, in.dims = dims, in.rank = 4;
    out.name = "clean", out.kind = ONEPOOL_MEMORY_POINTER, out.data = clean, out.bytes = bytes;
    onepool_binding *binding = NULL;
    check(onepool_binding_create(session, &in, 1, &out, 1, ONEPOOL_STRICT_ON, &binding));
    check(onepool_binding_run(binding, NULL)); /* again and again: fill `noisy`, run, read `clean` */
    transfer(argv[4], "wb", clean, bytes);

    onepool_verdicts *verdicts = NULL;
    onepool_verdict verdict = ONEPOOL_VERDICT_INIT;
    check(onepool_binding_verdicts(binding, &verdicts));
    for (size_t i = 0; onepool_verdicts_get(verdicts, i, &verdict) == ONEPOOL_OK; i++) {
        puts(verdict.sentence);
    }
    onepool_verdicts_free(verdicts);
    onepool_binding_free(binding); /* from here on no device touches the memory */
    onepool_session_free(session);
    free(noisy), free(clean);
    return 0;
}
