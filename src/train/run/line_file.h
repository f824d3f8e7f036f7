/* line_file -- a file that grows by whole lines: metrics.jsonl, samples.jsonl.
 *
 * A line is one write to the system, at the end of the file: whoever reads along sees whole lines,
 * and a crash loses none; nor does a full disk leave a part of one.
 */
#ifndef TRAIN_LINE_FILE_H
#define TRAIN_LINE_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct line_file;

enum status line_file_open(struct env *env, const char *path, struct line_file **file);
void line_file_close(struct line_file *file); /* NULL is fine */

/* `line` ends with its own newline. STATUS_IO is not said here: errno has the reason, and the file is as
 * it was. */
enum status line_file_add(struct line_file *file, const char *line, size_t bytes);

/* Of a file of objects {"step":N, ...}: drop the records behind the last with an N of `step` or less,
 * and what is behind the last newline if it is the beginning of one. Other lines that are not JSON are
 * moved to PATH.damaged, at its end, and a warning names them; other JSON stays. A last line that lacks
 * only its newline gets it. *last = the N of the last record that stays; 0 = none does. A file that is
 * not there is fine. */
enum status line_file_cut(struct env *env, const char *path, int64_t step, int64_t *last);

/* A file with anything in it gets the name PATH.1, PATH.2, ..., the first that is free: nobody will
 * write those lines again. */
enum status line_file_set_aside(struct env *env, const char *path);

/* Is it metrics.jsonl of a run, or empty? Its first line decides, which has the keys of a step's record,
 * or, where that is not JSON, any other. false when there is none. */
enum status line_file_is_ours(struct env *env, const char *path, bool *ours);

/* *step = the N of the last whole line of such a file; 0 = there is none, or no file. */
enum status line_file_last(struct env *env, const char *path, int64_t *step);

#endif
