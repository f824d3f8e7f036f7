/* jsonl -- reads documents from JSON lines: {"text": ...} or {"prompt": ..., "completion": ...},
 * one object per line.
 *
 * Blank lines are skipped and other keys are ignored. Errors name the line number.
 */
#ifndef TRAIN_JSONL_H
#define TRAIN_JSONL_H
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

#define JSONL_LINE_BYTES_MAX ((size_t)64 << 20)

struct jsonl_document { /* strings are valid during the visit only */
    const char *prompt; /* NULL if the line has "text" */
    size_t prompt_bytes;
    const char *text; /* "text" or "completion" */
    size_t text_bytes;
    int64_t line;  /* from 1 */
    size_t offset; /* of the line's first byte */
};

typedef enum status jsonl_visit_fn(void *user, const struct jsonl_document *document);

/* Visit every document in order, up to the first failure of a line or of `visit`. `origin` is the
 * file name for messages. */
enum status jsonl_parse(struct env *env, const char *data, size_t bytes, const char *origin,
                        jsonl_visit_fn *visit, void *user);

#endif
