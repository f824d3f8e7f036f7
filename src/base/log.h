/* log -- lines with a level, to one sink; and the first error kept, for who asks later.
 *
 * A log belongs to one rank. The library prints nothing by itself: the sink decides (the command's
 * writes to stderr).
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H
#include "base/status.h"

/* A notice is no complaint, but the only thing that a command has to say: it is heard with --quiet, too. */
enum log_level { LOG_ERROR, LOG_WARN, LOG_NOTICE, LOG_INFO, LOG_DEBUG };

/* `line` has no newline, no control character (base/printable.h) and no "error:" prefix. Called with the log's lock held: one line at a
 * time. */
typedef void log_sink_fn(void *user, enum log_level level, const char *line);

struct log;

struct log *log_create(log_sink_fn *sink, void *user,
                       enum log_level level); /* NULL = out of memory */
void log_destroy(struct log *log);            /* NULL is fine */

void log_write(struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define log_warn(env, ...)   log_write((env)->log, LOG_WARN, __VA_ARGS__)
#define log_notice(env, ...) log_write((env)->log, LOG_NOTICE, __VA_ARGS__)
#define log_info(env, ...)   log_write((env)->log, LOG_INFO, __VA_ARGS__)
#define log_debug(env, ...)  log_write((env)->log, LOG_DEBUG, __VA_ARGS__)

/* Log an error (with its place in the source when the level is LOG_DEBUG), keep it if it is the
 * first, return `st`. */
enum status log_fail(struct log *log, enum status st, const char *file, int line,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The first error's text, "" when there was none; forget it. The text lives until the next
 * log_error_clear. */
const char *log_first_error(const struct log *log);
void log_error_clear(struct log *log);

#endif
