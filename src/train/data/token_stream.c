/* token_stream.c -- copies ranges out of spans of 16- and 32-bit tokens. */
#include "train/data/token_stream.h"
#include <string.h>
#include "base/file.h"

static int find_span(const struct token_stream *stream, int64_t position)
{
    int low = 0, high = stream->span_count - 1; /* find the last span with start <= position */
    while (low < high) {
        int middle = low + (high - low + 1) / 2;
        if (stream->spans[middle].start <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static void copy_tokens(const struct token_span *span, int64_t first, int64_t count, int32_t *out)
{
    const uint8_t *from = (const uint8_t *)span->tokens + first * span->token_bytes;
    if (span->token_bytes == 4) {
        memcpy(out, from, (size_t)count * 4);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t token;
        memcpy(&token, from + 2 * i, 2);
        out[i] = token;
    }
}

enum status token_fail_beyond(struct env *env, const char *origin, uint32_t token, int64_t position,
                              int64_t vocab)
{
    return FAIL(env, CONFIG,
                "'%s': token %u at position %lld is beyond the vocabulary of %lld; for a new model "
                "set data.tokenizer to the tokenizer.json of these tokens or raise model.vocab; "
                "an existing model needs tokens of its own tokenizer",
                origin, token, (long long)position, (long long)vocab);
}

enum status token_stream_read(const struct token_stream *stream, struct env *env, int64_t first,
                              int64_t count, int64_t vocab, int32_t *out)
{
    CHECK(first >= 0 && count >= 0 && count <= stream->count - first);
    int64_t position = stream->first + first;
    for (int p = find_span(stream, position); count > 0; p++) {
        const struct token_span *span = &stream->spans[p];
        int64_t local = position - span->start, n = span->count - local;
        if (n > count)
            n = count;
        copy_tokens(span, local, n, out);
        TRY(file_map_check(env, span->file ? span->file : span->origin, span->tokens));
        for (int64_t i = 0; i < n; i++)
            if ((uint32_t)out[i] >= vocab)
                return token_fail_beyond(env, span->origin, (uint32_t)out[i], local + i, vocab);
        position += n;
        count -= n;
        out += n;
    }
    return STATUS_OK;
}

bool token_stream_masked(const struct token_stream *stream, int64_t i)
{
    uint64_t position = (uint64_t)(stream->first + i);
    return stream->mask && (stream->mask[position / 8] >> (position % 8) & 1);
}

enum status token_stream_window(const struct token_stream *stream, struct env *env, int64_t first,
                                int64_t count, int64_t vocab, int32_t *tokens, int32_t *labels)
{
    TRY(token_stream_read(stream, env, first, count, vocab, tokens));
    TRY(token_stream_read(stream, env, first + 1, count, vocab, labels));
    for (int64_t i = 0; i < count && stream->mask; i++)
        if (token_stream_masked(stream, first + 1 + i))
            labels[i] = -1;
    return stream->mask ? file_map_check(env, stream->spans->origin, stream->mask) : STATUS_OK;
}
