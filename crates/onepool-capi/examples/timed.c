/* timed MODEL DEVICE: what timed.rs does, in C. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <onepool.h>

enum { COUNT = 64, PAGE = 4096 };

static void check(onepool_status status) {
    if (status != ONEPOOL_OK) {
        fprintf(stderr, "%s: %s\n", onepool_status_name(status), onepool_last_error());
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* Microseconds in which the threads of a driver go to sleep. */
static void pause50(void) {
    const double start = now();
    while (now() - start < 50) {
    }
}

static int smaller(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    const char *device = argv[2];
    onepool_session_options options = ONEPOOL_SESSION_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    onepool_session *session = NULL;
    check(onepool_session_open(argv[1], &options, &session));

    const int64_t dims[1] = {COUNT};
    float *x = aligned_alloc(PAGE, PAGE), *y = aligned_alloc(PAGE, PAGE);
    if (!x || !y) {
        return 1;
    }
    onepool_memory in = ONEPOOL_MEMORY_INIT, out = ONEPOOL_MEMORY_INIT;
    in.name = "x", in.kind = ONEPOOL_MEMORY_POINTER, in.dtype = ONEPOOL_FLOAT32;
    in.data = x, in.bytes = COUNT * sizeof(float), in.dims = dims, in.rank = 1;
    out.name = "y", out.kind = ONEPOOL_MEMORY_POINTER, out.data = y, out.bytes = COUNT * sizeof(float);
    onepool_binding *binding = NULL;
    check(onepool_binding_create(session, &in, 1, &out, 1, ONEPOOL_STRICT_ON, &binding));

    size_t runs;
    for (int round = 0; scanf("%zu", &runs) == 1 && runs > 0; round++) {
        for (int i = 0; i < COUNT; i++) {
            x[i] = (float)(i + round % 8) / 8;
        }
        double *times = calloc(runs, sizeof(double));
        if (!times) {
            return 1;
        }
        for (size_t i = 0; i < runs; i++) {
            pause50();
            const double start = now();
            check(onepool_binding_run(binding, NULL));
            times[i] = now() - start;
        }
        for (int i = 0; i < COUNT; i++) {
            if (y[i] != x[i] * x[i] + x[i]) {
                fprintf(stderr, "element %d is %f, expected %f\n", i, y[i], x[i] * x[i] + x[i]);
                return 1;
            }
        }
        qsort(times, runs, sizeof(double), smaller);
        printf("%.3f\n", times[runs / 2]);
        fflush(stdout);
        free(times);
    }
    onepool_binding_free(binding);
    onepool_session_free(session);
    free(x), free(y);
    return 0;
}
