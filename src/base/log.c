/* log -- formats a line on the stack, filters by level, and passes it to the sink under the lock.
 *
 * Nothing here allocates after log_create, so that lack of memory can still be reported. A line
 * longer than LINE_BYTES is truncated and ends in "...". The first error is kept until it is
 * cleared; later ones are only logged.
 */
#include "base/log.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/printable.h"

enum { LINE_BYTES = 4096 };

struct log {
    pthread_mutex_t lock;
    log_sink_fn *sink; /* NULL = discard */
    void *user;        /* borrowed */
    enum log_level level;
    bool failed;
    char first[LINE_BYTES];
};

struct log *log_create(log_sink_fn *sink, void *user, enum log_level level)
{
    struct log *log = calloc(1, sizeof *log);
    if (!log)
        return NULL;
    pthread_mutex_init(&log->lock, NULL);
    log->sink = sink;
    log->user = user;
    log->level = level;
    return log;
}

void log_destroy(struct log *log)
{
    if (!log)
        return;
    pthread_mutex_destroy(&log->lock);
    free(log);
}

/* Format into `line`; returns the bytes used. Longer lines are truncated and end in "...". Names
 * and values may come from anywhere, so the line is made printable here, for every sink and for
 * log_first_error. */
static size_t format_line(char *line, const char *format, va_list args)
{
    char raw[LINE_BYTES + 1]; /* printable_copy truncates longer ones */
    int length = vsnprintf(raw, sizeof raw, format, args);
    if (length < 0)
        length = snprintf(raw, sizeof raw, "(a message that could not be formatted: %s)", format);
    size_t bytes = (size_t)length < sizeof raw ? (size_t)length : sizeof raw - 1;
    return printable_copy(line, LINE_BYTES, raw, bytes);
}

static void emit(struct log *log, enum log_level level, const char *line)
{
    if (log->sink && level <= log->level)
        log->sink(log->user, level, line);
}

void log_write(struct log *log, enum log_level level, const char *format, ...)
{
    if (level > log->level)
        return;
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    format_line(line, format, args);
    va_end(args);
    pthread_mutex_lock(&log->lock);
    emit(log, level, line);
    pthread_mutex_unlock(&log->lock);
}

enum status log_fail(struct log *log, enum status st, const char *file, int line_number,
                     const char *format, ...)
{
    char line[LINE_BYTES + 128];
    va_list args;
    va_start(args, format);
    size_t bytes = format_line(line, format, args);
    va_end(args);

    pthread_mutex_lock(&log->lock);
    if (!log->failed) {
        log->failed = true;
        memcpy(log->first, line, bytes + 1);
    }
    if (log->level >= LOG_DEBUG)
        snprintf(line + bytes, sizeof line - bytes, " [%s:%d]", file, line_number);
    emit(log, LOG_ERROR, line);
    pthread_mutex_unlock(&log->lock);
    return st;
}

const char *log_first_error(const struct log *log)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&log->lock;
    pthread_mutex_lock(lock);
    const char *text = log->failed ? log->first : "";
    pthread_mutex_unlock(lock);
    return text;
}

void log_error_clear(struct log *log)
{
    pthread_mutex_lock(&log->lock);
    log->failed = false;
    log->first[0] = 0;
    pthread_mutex_unlock(&log->lock);
}
