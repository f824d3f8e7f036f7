/* token_stream -- one logical sequence of tokens made of pieces in memory or in mapped files.
 *
 * A stream owns nothing: pieces, tokens and mask belong to whoever made it (source.h). Reading
 * copies tokens out, across the joints of pieces, and checks each against the vocabulary, because
 * one id out of range would read foreign memory in the embedding much later.
 */
#ifndef TRAIN_TOKEN_STREAM_H
#define TRAIN_TOKEN_STREAM_H
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"

struct token_span {
    const void *tokens; /* `count` little-endian numbers, perhaps unaligned */
    int token_bytes;    /* 2 or 4 */
    int64_t count;      /* at least 1 */
    int64_t start;      /* tokens in the pieces before it */
    const char *origin; /* the file, for messages */
    const char *file;   /* the mapped file where it is another one; NULL = the origin */
};

struct token_stream {
    const struct token_span *spans; /* in order of start, without gaps */
    int span_count;
    int64_t first, count; /* the stream is this range of the pieces' tokens */
    const uint8_t
        *mask; /* bit i of all the pieces' tokens set = not to be predicted; NULL = none is */
};

/* out[0 .. count) = tokens first .. first+count of the stream; a range inside it. Allocates
 * nothing. */
enum status token_stream_read(const struct token_stream *stream, struct env *env, int64_t first,
                              int64_t count, int64_t vocab, int32_t *out);

/* Say that a token is beyond the model's vocabulary, and what helps: settings that do not fit the
 * data are STATUS_CONFIG. */
enum status token_fail_beyond(struct env *env, const char *origin, uint32_t token, int64_t position,
                              int64_t vocab);

bool token_stream_masked(const struct token_stream *stream, int64_t i);

/* What a model learns from: tokens[i] = token first+i, labels[i] = the next one, or -1 where it
 * is masked. The range first .. first+count+1 lies inside the stream. */
enum status token_stream_window(const struct token_stream *stream, struct env *env, int64_t first,
                                int64_t count, int64_t vocab, int32_t *tokens, int32_t *labels);

#endif
