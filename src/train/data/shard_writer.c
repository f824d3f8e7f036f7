/* shard_writer.c -- writes llm.c token shards through a fixed buffer.
 *
 * The header is written last, when the number of tokens is known. The file has a temporary name
 * until shard_writer_finish.
 */
#include <string.h>
#include "base/file.h"
#include "train/data/shard.h"
#include "train/data/shard_header.h"
#include "train/data/token_packer.h"

struct shard_writer {
    struct env *env; /* borrowed */
    struct part_file *file;
    uint64_t fingerprint;
    struct token_packer packer;
};

static enum status write_bytes(void *user, uint64_t at, const void *data, size_t bytes)
{
    return part_file_write(user, at, data, bytes);
}

enum status shard_writer_create(struct env *env, const char *path, int64_t vocab,
                                uint64_t fingerprint, struct shard_writer **writer)
{
    struct shard_writer *w;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "shard writer", sizeof *w, &w));
    w->env = env;
    w->fingerprint = fingerprint;
    TRY_OR(undo_self, part_file_create(env, path, &w->file));
    token_packer_init(&w->packer, env, vocab, SHARD_HEADER_WORDS * sizeof(int32_t), write_bytes,
                      w->file);
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

enum status shard_writer_add(struct shard_writer *w, const int32_t *tokens, int64_t count)
{
    if (count > SHARD_COUNT_MAX - w->packer.count)
        return FAIL(w->env, FORMAT, "a token shard holds at most %d tokens", SHARD_COUNT_MAX);
    return token_packer_add(&w->packer, tokens, count);
}

int64_t shard_writer_count(const struct shard_writer *writer)
{
    return writer->packer.count;
}

enum status shard_writer_finish(struct shard_writer *w)
{
    const struct token_packer *packer = &w->packer;
    int32_t header[SHARD_HEADER_WORDS] = {0};
    bool narrow = packer->token_bytes == 2;
    if (packer->count == 0)
        return FAIL(w->env, FORMAT, "there are no tokens to write");
    header[0] = narrow ? SHARD_MAGIC_U16 : SHARD_MAGIC_U32;
    header[1] = narrow ? SHARD_VERSION_U16 : SHARD_VERSION_U32;
    header[2] = (int32_t)packer->count;
    header[3] = (int32_t)packer->vocab;
    memcpy(&header[4], &w->fingerprint, sizeof w->fingerprint);
    TRY(token_packer_flush(&w->packer));
    TRY(part_file_write(w->file, 0, header, sizeof header));
    return part_file_commit(w->file);
}
