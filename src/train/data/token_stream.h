/* token_stream -- one logical sequence of tokens, made of spans in memory or in mapped files.
 *
 * A stream owns nothing: spans, tokens and mask belong to its creator (source.h). Reading copies
 * tokens out, across span boundaries, and compares each with the vocabulary, because an id out of
 * range would make the embedding read out of bounds much later.
 */
#ifndef TRAIN_TOKEN_STREAM_H
#define TRAIN_TOKEN_STREAM_H
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"

struct token_span {
    const void *tokens; /* `count` little-endian numbers, possibly unaligned */
    int token_bytes;    /* 2 or 4 */
    int64_t count;      /* at least 1 */
    int64_t start;      /* number of tokens in the spans before it */
    const char *origin; /* the source file, for messages */
    const char *file;   /* the mapped file, such as a token cache; NULL = same as origin */
};

struct token_stream {
    const struct token_span *spans; /* in order of start, without gaps */
    int span_count;
    int64_t first, count; /* the stream is this range of the tokens of all spans */
    const uint8_t
        *mask; /* bit i set = token i of all spans is never predicted; NULL = none is masked */
};

/* out[0 .. count) = tokens [first, first + count) of the stream, which must be inside it. Allocates
 * nothing. */
enum status token_stream_read(const struct token_stream *stream, struct env *env, int64_t first,
                              int64_t count, int64_t vocab, int32_t *out);

/* Report a token beyond the model's vocabulary, and how to fix it. STATUS_CONFIG, because the
 * settings do not match the data. */
enum status token_fail_beyond(struct env *env, const char *origin, uint32_t token, int64_t position,
                              int64_t vocab);

bool token_stream_masked(const struct token_stream *stream, int64_t i);

/* A training window: tokens[i] = token first + i, labels[i] = the token after it, or -1 if that is
 * masked. The range [first, first + count + 1) must be inside the stream. */
enum status token_stream_window(const struct token_stream *stream, struct env *env, int64_t first,
                                int64_t count, int64_t vocab, int32_t *tokens, int32_t *labels);

#endif
