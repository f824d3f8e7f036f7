/* data_size -- how many bytes of data a run will map, found before it starts. Token files count
 * with their size. The tokens of text are looked up in the cache, or else estimated from samples of
 * the text.
 *
 * Mapped files are in the system's page cache: one copy for all ranks of a host, reclaimed when
 * memory is short. So no rank's memory account includes them, neither in a plan nor in a run.
 */
#ifndef TRAIN_DATA_SIZE_H
#define TRAIN_DATA_SIZE_H
#include "base/text.h"
#include "train/data/dataset.h"

struct data_size { /* public fields */
    bool known;    /* false: the files could not be read; the other fields are meaningless */
    bool exact;    /* false: an estimate, because some text has not been encoded yet */
    int64_t tokens;
    uint64_t bytes; /* of all mapped files */
};

/* `vocab` is used if `tokenizer` is NULL. `folder` is the run folder; NULL = unknown. Data that is
 * missing or cannot be read is not an error here: `known` is false, and the call that opens the
 * data reports the reason. */
enum status data_size_find(struct env *env, const struct data_config *data,
                           const struct tokenizer *tokenizer, int64_t vocab, const char *folder,
                           struct data_size *size);

/* Append "about 71.2k tokens in 143.1 KiB, mapped: one copy for all ranks of a host". */
void data_size_describe(const struct data_size *size, struct text *text);

#endif
