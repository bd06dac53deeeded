/* says MODEL: what the library says while it opens a model, and what the model says of itself. */
#include <stdio.h>

#include "onepool.h"

static void hear(void *user, uint32_t level, const char *target, const char *message) {
    fprintf(user, "%s %s: %s\n", level <= ONEPOOL_LOG_WARNING ? "warning" : "note", target, message);
}

int main(int argc, char **argv) {
    onepool_log_set_callback(ONEPOOL_LOG_INFO, hear, stderr);
    onepool_session *session = NULL;
    if (argc != 2 || onepool_session_open(argv[1], NULL, &session) != ONEPOOL_OK) {
        fprintf(stderr, "%s\n", onepool_last_error());
        return 1;
    }
    onepool_metadata said = ONEPOOL_METADATA_INIT;
    onepool_session_metadata(session, &said);
    printf("%s, by %s %s\n", said.format, said.producer, said.producer_version);
    for (size_t i = 0; i < said.property_count; i++) {
        const char *name, *value;
        onepool_session_property(session, i, &name, &value);
        printf("%s: %s\n", name, value);
    }
    onepool_session_free(session);
    onepool_log_set_callback(ONEPOOL_LOG_INFO, NULL, NULL);
    return 0;
}
