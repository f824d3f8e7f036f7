/* shard_writer.c -- writing llm.c token shards, through a fixed buffer.
 *
 * The header is written last, when the count is known; until finish the file has a temporary
 * name.
 */
#include <string.h>
#include "base/part_file.h"
#include "train/shard.h"
#include "train/shard_header.h"

#define BUFFER_BYTES (1u << 18)

struct shard_writer {
    struct env *env; /* borrowed */
    struct part_file *file;
    int64_t vocab;
    uint64_t fingerprint;
    int token_bytes;
    int64_t count;   /* all tokens so far */
    uint64_t at;     /* where the buffer goes in the file */
    size_t buffered; /* bytes */
    uint8_t buffer[BUFFER_BYTES];
};

enum status shard_writer_create(struct env *env, const char *path, int64_t vocab,
                                uint64_t fingerprint, struct shard_writer **writer)
{
    struct shard_writer *w;
    enum status st;
    CHECK(vocab > 0 && vocab <= INT32_MAX);
    TRY(mem_alloc(env, MEM_OTHER, "shard writer", sizeof *w, &w));
    w->env = env;
    w->vocab = vocab;
    w->fingerprint = fingerprint;
    w->token_bytes = vocab <= 65536 ? 2 : 4;
    w->at = SHARD_HEADER_WORDS * sizeof(int32_t);
    TRY_OR(undo_self, part_file_create(env, path, &w->file));
    *writer = w;
    return STATUS_OK;
undo_self:
    mem_free(env, w);
    return st;
}

void shard_writer_destroy(struct shard_writer *writer)
{
    if (!writer)
        return;
    part_file_destroy(writer->file);
    mem_free(writer->env, writer);
}

static enum status buffer_flush(struct shard_writer *w)
{
    TRY(part_file_write(w->file, w->at, w->buffer, w->buffered));
    w->at += w->buffered;
    w->buffered = 0;
    return STATUS_OK;
}

enum status shard_writer_add(struct shard_writer *w, const int32_t *tokens, int64_t count)
{
    if (count > SHARD_COUNT_MAX - w->count)
        return FAIL(w->env, FORMAT, "a token shard holds at most %d tokens", SHARD_COUNT_MAX);
    for (int64_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)tokens[i];
        if (token >= w->vocab)
            return FAIL(w->env, FORMAT, "token %u is beyond the vocabulary of %lld", token,
                        (long long)w->vocab);
        memcpy(w->buffer + w->buffered, &token, (size_t)w->token_bytes); /* little-endian */
        w->buffered += (size_t)w->token_bytes;
        if (w->buffered == BUFFER_BYTES)
            TRY(buffer_flush(w));
    }
    w->count += count;
    return STATUS_OK;
}

int64_t shard_writer_count(const struct shard_writer *writer)
{
    return writer->count;
}

enum status shard_writer_finish(struct shard_writer *w)
{
    int32_t header[SHARD_HEADER_WORDS] = {0};
    if (w->count == 0)
        return FAIL(w->env, FORMAT, "there are no tokens to write");
    header[0] = w->token_bytes == 2 ? SHARD_MAGIC_U16 : SHARD_MAGIC_U32;
    header[1] = w->token_bytes == 2 ? SHARD_VERSION_U16 : SHARD_VERSION_U32;
    header[2] = (int32_t)w->count;
    header[3] = (int32_t)w->vocab;
    memcpy(&header[4], &w->fingerprint, sizeof w->fingerprint);
    TRY(buffer_flush(w));
    TRY(part_file_write(w->file, 0, header, sizeof header));
    return part_file_commit(w->file);
}
