/* line_file -- a file that grows by complete lines: metrics.jsonl, samples.jsonl.
 *
 * A line is one write at the end of the file: a concurrent reader sees only complete lines, a crash
 * of the process loses none, and a full disk leaves no partial line.
 */
#ifndef TRAIN_LINE_FILE_H
#define TRAIN_LINE_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "base/text.h"

struct line_file;

enum status line_file_open(struct env *env, const char *path, struct line_file **file);
void line_file_close(struct line_file *file); /* NULL is fine */

/* `line` ends with a newline. STATUS_IO is not logged: errno has the reason, and the file is
 * unchanged. */
enum status line_file_add(struct line_file *file, const char *line, size_t bytes);

/* Insert `text` before the closing brace of the last record {"step":N, ...} with this N, unless the
 * record contains `key`. Nothing else changes; a reader sees the old file or the new one. Without
 * such a record, nothing happens. */
enum status line_file_extend(struct line_file *file, int64_t step, const char *key,
                             const struct text *text);

/* Truncate a file of records {"step":N, ...} to `step`: drop the records after the last one with an
 * N of `step` or less, and an incomplete record after the last newline. All other lines, such as
 * notes of the user and damaged lines, are kept. A last line that lacks only its newline gets one.
 * *last = the N of the last record that is kept; 0 = none. The file may be missing. */
enum status line_file_cut(struct env *env, const char *path, int64_t step, int64_t *last);

/* Rename a file that is not empty to PATH.1, PATH.2, ..., the first free name: no run will write
 * its lines again. */
enum status line_file_set_aside(struct env *env, const char *path);

/* *ours: the file is the metrics.jsonl of a run, or empty. Its first line decides: it has the keys
 * of a step's record. If the first line is not JSON, any later record
 * is sufficient. False if the file is missing. */
enum status line_file_is_ours(struct env *env, const char *path, bool *ours);

/* *step = the N of the last complete line of such a file; 0 = none, or no file. */
enum status line_file_last(struct env *env, const char *path, int64_t *step);

#endif
