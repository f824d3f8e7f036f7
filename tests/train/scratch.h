/* scratch -- shared by tests that use files: an env that keeps the last error, a temporary folder,
 * a function that writes a file. */
#ifndef TESTS_TRAIN_SCRATCH_H
#define TESTS_TRAIN_SCRATCH_H
#include "testing.h"
#include "base/file.h"

struct scratch {
    struct env env;
    char folder[64];
    char path[128]; /* result of the last scratch_path */
};

static void scratch_sink(void *user, enum log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

/* A log sink that keeps the last warning in a char[512]. */
static inline void scratch_keep_warning(void *user, enum log_level level, const char *line)
{
    if (level == LOG_WARN)
        snprintf(user, 512, "%s", line);
}

static inline void scratch_open(struct scratch *s)
{
    assert_int_equal(env_create(&s->env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    strcpy(s->folder, "/tmp/sifr-test-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
}

/* Removes the folder with all files in it; env_destroy checks that all memory was freed. */
static inline void scratch_close(struct scratch *s)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", s->folder);
    assert_int_equal(system(command), 0);
    env_destroy(&s->env);
}

static inline const char *scratch_path(struct scratch *s, const char *name)
{
    snprintf(s->path, sizeof s->path, "%s/%s", s->folder, name);
    return s->path;
}

static inline const char *scratch_write(struct scratch *s, const char *name, const void *data,
                                        size_t bytes)
{
    FILE *file = fopen(scratch_path(s, name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
    return s->path;
}

static inline const char *scratch_text(struct scratch *s, const char *name, const char *text)
{
    return scratch_write(s, name, text, strlen(text));
}

/* The first error since the last call contains `part`. */
static inline void scratch_expect(struct scratch *s, const char *part)
{
    const char *error = log_first_error(s->env.log);
    if (!strstr(error, part))
        fail_msg("expected '%s' in '%s'", part, error);
    log_error_clear(s->env.log);
}

#endif
