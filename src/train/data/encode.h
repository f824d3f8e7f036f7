/* encode -- encodes text and JSONL files into two token shards, one chunk of text at a time: the
 * tokens of a file are never all in memory.
 *
 * The tokens are the same as those a run would train on, given the same files: each stream begins
 * with the end-of-text token, and one follows every document.
 */
#ifndef TRAIN_ENCODE_H
#define TRAIN_ENCODE_H
#include "train/data/source.h"

struct encode_job {
    struct env *env;
    const struct tokenizer *tokenizer;
    const char *const *patterns; /* files or globs */
    int pattern_count;
    enum data_format format; /* DATA_AUTO, DATA_TEXT or DATA_JSONL */
    double split;            /* fraction of the text that goes to the second shard */
    bool special;
    const char *path[2]; /* train, val; a file without text is not written */
};

struct encode_result {
    int64_t tokens[2]; /* in train and val; 0 = that file was not written */
    size_t bytes[2];   /* of text */
    double seconds;
};

enum status encode_files(const struct encode_job *job, struct encode_result *result);

#endif
