/* data_digest -- sizes and hashes of a run's data files. Every checkpoint has a digest, which is
 * compared when the run resumes.
 *
 *     a source of up to 256 MiB, and all text     every byte is hashed
 *     a larger source of tokens                   the size, and samples at fixed positions
 *
 * File names do not matter. For tokens, neither does the way they are divided into files. If
 * modification times differ, more samples are compared; different times alone do not count as
 * different data.
 */
#ifndef TRAIN_DATA_DIGEST_H
#define TRAIN_DATA_DIGEST_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/text.h"
#include "train/data/data_config.h"

#define DATA_DIGEST_WHOLE ((uint64_t)256 << 20) /* larger sources are sampled */
enum { DATA_DIGEST_SAMPLES = 2048, DATA_DIGEST_MORE = 8192, DATA_DIGEST_SAMPLE_BYTES = 4096 };

struct data_digest {        /* public fields; all zero = unknown */
    uint64_t kinds;         /* of the sources, hashed; must be equal for digests to be compared */
    int64_t files;          /* of all sources */
    uint64_t whole_bytes;   /* bytes of the sources that are hashed completely */
    uint64_t sampled_bytes; /* bytes of the sources that are sampled */
    int64_t samples;        /* DATA_DIGEST_SAMPLES for each sampled source */
    uint64_t hash;          /* of the bytes that are hashed completely, and of the samples */
    uint64_t more, times;   /* of more samples, of modification times; 0 = nothing is sampled */
};

/* A file of a source. The files of a source are hashed as one sequence of bytes. */
struct data_span {
    const void *data;
    uint64_t bytes;
    const char *path; /* for the modification time */
};
/* A source of up to `whole` bytes is hashed completely; only tests pass a value other than
 * DATA_DIGEST_WHOLE. */
void data_digest_compute(const struct data_span *spans, int count, uint64_t whole,
                         struct data_digest *digest);
/* The digest of a source whose complete hash is already known. */
struct data_digest data_digest_hashed(int files, uint64_t bytes, uint64_t hash);

enum data_part { DATA_PART_TRAINING, DATA_PART_HELD_OUT, DATA_PART_COUNT };
/* The digest of the bytes in the files that data.path and data.mix name, or data.val; of large
 * sources the samples. No tokenizer is needed. All zero if there are no such files. */
enum status data_digest_files(struct env *env, const struct data_config *config,
                              enum data_part part, struct data_digest *digest);

/* Add the digest of a source of kind `kind` to `all`. */
void data_digest_join(struct data_digest *all, const struct data_digest *source, int kind);

enum data_verdict {
    DATA_SAME,
    DATA_DIFFERS,
    DATA_UNKNOWN, /* the two cannot be compared */
};
/* Compare the digest of a checkpoint (`there`) with the current one (`here`). Appends to `compared`
 * what was compared: "3 files, 154.0 KiB hashed whole". */
enum data_verdict data_digest_compare(const struct data_digest *there,
                                      const struct data_digest *here, struct text *compared);

#endif
