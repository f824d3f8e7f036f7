/* line_tail -- reads the complete lines that were added to a file since the last look.
 *
 * Costs one stat() while nothing changes. A file that was replaced or truncated (a resumed run cuts
 * its records) is read again from the beginning: it is another file, or shorter, or does not have
 * the bytes that were read last.
 */
#ifndef CLI_LINE_TAIL_H
#define CLI_LINE_TAIL_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "base/env.h"

enum { LINE_TAIL_BYTES = 1 << 20 }; /* of a line; longer ones are skipped */

struct line_tail {
    char *path;   /* owned by the caller */
    dev_t device; /* of the file that was read last */
    ino_t inode;
    off_t done;         /* bytes that were read as complete lines, or skipped */
    char last[32];      /* the bytes before `done` */
    bool skipping;      /* inside of a line that is too long */
    int64_t long_lines; /* that were skipped */
};

/* `line` ends with a NUL in place of its newline, and may be changed. */
typedef void line_tail_fn(void *user, char *line, size_t bytes);

/* `restart` is called before lines of a file that is read from the beginning although lines of it
 * were passed on before. A missing file has no lines. Returns whether anything was read. */
bool line_tail_read(struct env *env, struct line_tail *tail, line_tail_fn *line,
                    void (*restart)(void *user), void *user);

#endif
