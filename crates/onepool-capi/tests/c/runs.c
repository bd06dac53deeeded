/* runs MODEL DEVICE: runs that end early, on threads of their own, and in parallel. */
#include <pthread.h>

#include "check.h"

enum { LARGE = 256, LARGE_BYTES = 3 * LARGE * LARGE * 4 };

static onepool_binding *bind(onepool_session *session, int64_t side) {
    const int64_t dims[4] = {1, 3, side, side};
    onepool_memory in = pointer_to("noisy", NULL, 0);
    in.kind = ONEPOOL_MEMORY_OWN;
    in.dims = dims;
    onepool_binding *binding = NULL;
    OK(onepool_binding_create(session, &in, 1, NULL, 0, 0, &binding));
    return binding;
}

typedef struct {
    pthread_mutex_t lock;
    onepool_binding *binding;
    onepool_run *run;
    onepool_status status, waited, again;
    int calls, said;
} ended;

static void end(void *user, onepool_status status, const char *message) {
    ended *e = user;
    pthread_mutex_lock(&e->lock);
    e->calls++;
    e->status = status;
    e->said = strlen(message) > 0;
    /* It would wait for itself. */
    e->waited = e->run ? onepool_run_wait(e->run, ONEPOOL_FOREVER) : ONEPOOL_OK;
    if (e->binding) {
        e->again = onepool_binding_run(e->binding, NULL);
        onepool_binding_free(e->binding);
    }
    pthread_mutex_unlock(&e->lock);
}

typedef struct {
    onepool_session *session;
    onepool_binding *shared;
    const float *expected;
    int ran, busy;
} work;

static void *in_parallel(void *user) {
    work *w = user;
    float *input = malloc(BYTES), *output = malloc(BYTES);
    for (int i = 0; i < 5; i++) {
        fill(input, ELEMENTS, 3);
        by_value(w->session, input, output);
        CHECK(memcmp(output, w->expected, BYTES) == 0);
        const onepool_status status = onepool_binding_run(w->shared, NULL);
        CHECK(status == ONEPOOL_OK || status == ONEPOOL_ERROR_BUSY);
        w->ran += status == ONEPOOL_OK;
        w->busy += status == ONEPOOL_ERROR_BUSY;
    }
    free(input), free(output);
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    onepool_session *session = open_session(argv[1], argv[2]);
    onepool_binding *large = bind(session, LARGE), *small = bind(session, SIDE);

    /* A run, asked about, waited for twice. */
    ended e = {.lock = PTHREAD_MUTEX_INITIALIZER, .status = ONEPOOL_ERROR_PANIC};
    onepool_run *run = NULL;
    OK(onepool_binding_start(large, NULL, end, &e, &run));
    EXPECT(ONEPOOL_ERROR_BUSY, onepool_binding_run(large, NULL), "`binding` is in use");
    EXPECT(ONEPOOL_ERROR_TIMEOUT, onepool_run_wait(run, 0), "not over");
    OK(onepool_run_wait(run, ONEPOOL_FOREVER));
    OK(onepool_run_wait(run, 0));
    CHECK(e.calls == 1 && e.status == ONEPOOL_OK && !e.said);
    OK(onepool_run_free(run));

    /* Cancelled under way: by the run, and by a token. */
    OK(onepool_binding_start(large, NULL, end, &e, &run));
    OK(onepool_run_cancel(run));
    EXPECT(ONEPOOL_ERROR_CANCELLED, onepool_run_wait(run, ONEPOOL_FOREVER), "cancelled after");
    EXPECT(ONEPOOL_ERROR_CANCELLED, onepool_run_wait(run, ONEPOOL_FOREVER), "cancelled after");
    CHECK(e.calls == 2 && e.status == ONEPOOL_ERROR_CANCELLED && e.said);
    OK(onepool_run_free(run));
    onepool_run_options options = ONEPOOL_RUN_OPTIONS_INIT;
    OK(onepool_cancel_create(&options.cancel));
    OK(onepool_binding_run(small, &options));
    OK(onepool_cancel_trigger(options.cancel));
    EXPECT(ONEPOOL_ERROR_CANCELLED, onepool_binding_run(small, &options), "cancelled");
    OK(onepool_cancel_free(options.cancel));
    EXPECT(ONEPOOL_ERROR_INVALID_HANDLE, onepool_binding_run(small, &options), "options.cancel");
    options.cancel = NULL;
    options.time_limit_ns = 1;
    EXPECT(ONEPOOL_ERROR_TIME_LIMIT, onepool_binding_run(small, &options), "time limit");
    options.time_limit_ns = UINT64_C(600000000000);
    OK(onepool_binding_run(small, &options));

    /* A callback alone, which cannot wait for its run, and may run the binding again and free it. */
    pthread_mutex_lock(&e.lock);
    e.binding = small;
    OK(onepool_binding_start(small, NULL, end, &e, &e.run));
    pthread_mutex_unlock(&e.lock);
    OK(onepool_run_wait(e.run, ONEPOOL_FOREVER));
    CHECK(e.calls == 3 && e.waited == ONEPOOL_ERROR_BUSY && e.again == ONEPOOL_OK);
    EXPECT(ONEPOOL_ERROR_INVALID_HANDLE, onepool_binding_run(small, NULL), "freed");
    OK(onepool_run_free(e.run));

    /* Freed while it runs: the end is waited for. */
    OK(onepool_binding_start(large, NULL, NULL, NULL, &run));
    OK(onepool_binding_free(large));
    OK(onepool_run_wait(run, ONEPOOL_FOREVER));
    OK(onepool_run_free(run));

    /* Several threads. */
    float *input = malloc(BYTES), *expected = malloc(BYTES);
    fill(input, ELEMENTS, 3);
    by_value(session, input, expected);
    small = bind(session, SIDE);
    work each[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        each[i] = (work){session, small, expected, 0, 0};
        CHECK(pthread_create(&threads[i], NULL, in_parallel, &each[i]) == 0);
    }
    int ran = 0, busy = 0;
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        ran += each[i].ran, busy += each[i].busy;
    }
    CHECK(ran + busy == 15 && ran >= 1);
    OK(onepool_binding_free(small));
    OK(onepool_session_free(session));
    nothing_left();
    free(input), free(expected);
    puts("all of runs passed");
    return 0;
}
