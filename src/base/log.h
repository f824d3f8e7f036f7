/* log -- lines with a level, sent to one sink. The text of the first error is kept.
 *
 * A log belongs to one rank. The library itself prints nothing: the sink decides (the command's
 * sink writes to stderr).
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H
#include "base/status.h"

/* A notice is not a problem, but the essential output of a command: --quiet does not hide it. */
enum log_level { LOG_ERROR, LOG_WARN, LOG_NOTICE, LOG_INFO, LOG_DEBUG };

/* `line` has no newline, no control character (base/printable.h) and no "error:" prefix. Called
 * with the log's lock held, so one line at a time. */
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

/* Log an error (with its source location when the level is LOG_DEBUG), keep it if it is the first,
 * and return `st`. */
enum status log_fail(struct log *log, enum status st, const char *file, int line,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The text of the first error, "" when there was none; valid until the next log_error_clear, which
 * forgets it. */
const char *log_first_error(const struct log *log);
void log_error_clear(struct log *log);

#endif
