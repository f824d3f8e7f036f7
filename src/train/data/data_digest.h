/* data_digest -- sizes and hashes of a run's data files. Every checkpoint has a digest, which is
 * compared when the run resumes.
 *
 *     a source of up to 256 MiB, and all text     every byte is hashed
 *     a larger source of tokens                   the size, and samples at fixed positions
 *
 * File names do not matter and, for tokens, neither does the way they are divided into files. If
 * modification times differ, more samples are compared; the times alone are not a difference.
 */
#ifndef TRAIN_DATA_DIGEST_H
#define TRAIN_DATA_DIGEST_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/text.h"

#define DATA_DIGEST_WHOLE ((uint64_t)256 << 20) /* bytes of a source that are hashed whole */
enum { DATA_DIGEST_SAMPLES = 2048, DATA_DIGEST_MORE = 8192, DATA_DIGEST_SAMPLE_BYTES = 4096 };

struct data_digest {      /* open; all zero: not known */
    uint64_t kinds;       /* what the sources are: only of the same can bytes be compared */
    int64_t files;        /* of all sources */
    uint64_t whole_bytes; /* hashed whole */
    uint64_t sampled_bytes;
    int64_t samples;      /* taken of these, in the first look */
    uint64_t hash;        /* of what was hashed whole, and of the samples */
    uint64_t more, times; /* of more samples, of the files' times; 0 where there are no samples */
};

/* The content of a source: pieces in order, as if they were one. */
struct data_span {
    const void *data;
    uint64_t bytes;
    const char *path; /* for its time */
};
/* `whole` is DATA_DIGEST_WHOLE but in tests. */
void data_digest_compute(const struct data_span *spans, int count, uint64_t whole,
                         struct data_digest *digest);
/* Of a source that has been hashed whole already. */
struct data_digest data_digest_hashed(int files, uint64_t bytes, uint64_t hash);

/* One more source, of a kind. */
void data_digest_join(struct data_digest *all, const struct data_digest *source, int kind);

enum data_verdict {
    DATA_SAME,
    DATA_DIFFERS,
    DATA_UNKNOWN, /* they cannot be compared */
};
/* Appends to `compared` in words what was: "3 files, 154.0 KiB hashed whole". */
enum data_verdict data_digest_compare(const struct data_digest *there,
                                      const struct data_digest *here, struct text *compared);

#endif
