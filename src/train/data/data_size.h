/* data_size -- how much a run will map of its data, before it starts: token files as they are, the
 * tokens of text as the cache has them, else by an estimate from samples of the text.
 *
 * Mapped files are the system's page cache: one copy for all ranks of a host, given back when memory
 * is short. So they are in no rank's account, neither in a plan's nor in a run's.
 */
#ifndef TRAIN_DATA_SIZE_H
#define TRAIN_DATA_SIZE_H
#include "base/text.h"
#include "train/data/dataset.h"

struct data_size { /* open */
    bool known;    /* the files are here */
    bool exact;    /* false: tokens of text that has not been encoded yet, an estimate */
    int64_t tokens;
    uint64_t bytes; /* of all files that are mapped */
};

/* `tokenizer` may be NULL, then `vocab` counts; `folder` is the run folder, NULL = not known. Data that
 * is elsewhere, or cannot be read, is not known: the call that opens it says why. */
enum status data_size_find(struct env *env, const struct data_config *data,
                           const struct tokenizer *tokenizer, int64_t vocab, const char *folder,
                           struct data_size *size);

/* For people: "about 71.2k tokens in 143.1 KiB, mapped: one copy for all ranks of a host". */
void data_size_describe(const struct data_size *size, struct text *text);

#endif
