/* shard.c -- reads and writes token shards.
 *
 *     llm.c:  header of 256 x int32, then tokens
 *             {magic, version, token count, vocab*, fingerprint low*, high*, 0 ...}
 *     raw:    tokens
 *
 *     * only in our files; 0 in those of other writers
 *
 * The size of the file must match the header exactly: an interrupted download leaves a truncated
 * shard. The writer has a fixed buffer and writes the header last, when the number of tokens is
 * known; the file has a temporary name until shard_writer_finish.
 */
#include "train/data/shard.h"
#include <string.h>
#include "base/file.h"
#include "train/data/token_packer.h"
#include "train/data/token_stream.h"

#define SHARD_HEADER_WORDS 256 /* int32 each */
#define SHARD_MAGIC_U16    20240520
#define SHARD_VERSION_U16  1
#define SHARD_MAGIC_U32    20240801
#define SHARD_VERSION_U32  7

struct shard {
    struct env *env; /* borrowed */
    char *path;
    struct file_map map; /* empty if opened from memory */
    const uint8_t *tokens;
    int64_t count;
    int token_bytes;
    int64_t vocab;
    uint64_t fingerprint;
};

bool shard_is_llmc(const void *data, size_t bytes)
{
    int32_t magic;
    if (bytes < sizeof magic)
        return false;
    memcpy(&magic, data, sizeof magic);
    return magic == SHARD_MAGIC_U16 || magic == SHARD_MAGIC_U32;
}

/* --- parsing -------------------------------------------------------------------------------- */

static enum status parse_llmc(struct shard *shard, const uint8_t *data, size_t bytes)
{
    struct env *env = shard->env;
    int32_t header[SHARD_HEADER_WORDS];
    if (!shard_is_llmc(data, bytes))
        return FAIL(
            env, FORMAT,
            "'%s' has no token shard header; for raw token ids set data.format to u16 or u32",
            shard->path);
    if (bytes < sizeof header)
        return FAIL(env, FORMAT, "'%s' is truncated: %zu bytes, the header alone has %zu",
                    shard->path, bytes, sizeof header);
    memcpy(header, data, sizeof header);
    bool wide = header[0] == SHARD_MAGIC_U32;
    int version = wide ? SHARD_VERSION_U32 : SHARD_VERSION_U16;
    if (header[1] != version)
        return FAIL(env, FORMAT,
                    "'%s': version %d of token shard kind %d is not supported, only %d",
                    shard->path, header[1], header[0], version);
    if (header[2] <= 0)
        return FAIL(env, FORMAT, "'%s' holds no tokens (its header says %d)", shard->path,
                    header[2]);
    shard->token_bytes = wide ? 4 : 2;
    shard->count = header[2];
    size_t needed = sizeof header + (size_t)shard->count * (size_t)shard->token_bytes;
    if (bytes != needed)
        return FAIL(env, FORMAT, "'%s' is %s: %zu bytes, but %d tokens of %d bytes need %zu",
                    shard->path, bytes < needed ? "truncated" : "too long", bytes, header[2],
                    shard->token_bytes, needed);
    shard->tokens = data + sizeof header;
    shard->vocab = header[3] > 0 ? header[3] : 0;
    memcpy(&shard->fingerprint, &header[4], sizeof shard->fingerprint);
    return STATUS_OK;
}

static enum status parse_bare(struct shard *shard, const uint8_t *data, size_t bytes,
                              int token_bytes)
{
    if (bytes == 0)
        return FAIL(shard->env, FORMAT, "'%s' is empty", shard->path);
    if (shard_is_llmc(data, bytes))
        return FAIL(
            shard->env, CONFIG,
            "'%s' has an llm.c header; read it with data.format tokens, not as bare numbers",
            shard->path);
    if (bytes % (size_t)token_bytes != 0)
        return FAIL(shard->env, FORMAT,
                    "'%s' is truncated: %zu bytes is not a multiple of %d, the bytes of a token",
                    shard->path, bytes, token_bytes);
    shard->tokens = data;
    shard->token_bytes = token_bytes;
    shard->count = (int64_t)(bytes / (size_t)token_bytes);
    return STATUS_OK;
}

static enum status parse(struct shard *shard, const void *data, size_t bytes,
                         enum shard_format format)
{
    if (format == SHARD_LLMC)
        return parse_llmc(shard, data, bytes);
    return parse_bare(shard, data, bytes, format == SHARD_U16 ? 2 : 4);
}

/* --- the open shard ------------------------------------------------------------------------- */

static enum status create(struct env *env, const char *path, struct shard **shard)
{
    TRY(mem_alloc(env, MEM_LOADER, "shard", sizeof **shard, shard));
    (*shard)->env = env;
    return mem_strdup(env, path, &(*shard)->path);
}

enum status shard_open_memory(struct env *env, const void *data, size_t bytes, const char *origin,
                              enum shard_format format, struct shard **shard)
{
    struct shard *s = NULL;
    enum status st;
    TRY_OR(undo_shard, create(env, origin, &s));
    TRY_OR(undo_shard, parse(s, data, bytes, format));
    *shard = s;
    return STATUS_OK;
undo_shard:
    shard_close(s);
    return st;
}

enum status shard_open(struct env *env, const char *path, enum shard_format format,
                       struct shard **shard)
{
    struct shard *s = NULL;
    enum status st;
    TRY_OR(undo_shard, create(env, path, &s));
    TRY_OR(undo_shard, file_map_open(env, path, &s->map));
    TRY_OR(undo_shard, parse(s, s->map.data, s->map.bytes, format));
    TRY_OR(undo_shard, file_map_check(env, path, s->map.data));
    *shard = s;
    return STATUS_OK;
undo_shard:
    shard_close(s);
    return st;
}

void shard_close(struct shard *shard)
{
    if (!shard)
        return;
    struct env *env = shard->env;
    if (shard->map.data)
        file_map_close(&shard->map);
    mem_free(env, shard->path);
    mem_free(env, shard);
}

int64_t shard_count(const struct shard *shard)
{
    return shard->count;
}

const void *shard_tokens(const struct shard *shard)
{
    return shard->tokens;
}

int shard_token_bytes(const struct shard *shard)
{
    return shard->token_bytes;
}

uint64_t shard_bytes(const struct shard *shard)
{
    return shard->map.bytes;
}

const char *shard_path(const struct shard *shard)
{
    return shard->path;
}

int64_t shard_vocab(const struct shard *shard)
{
    return shard->vocab;
}

uint64_t shard_fingerprint(const struct shard *shard)
{
    return shard->fingerprint;
}

enum status shard_check(const struct shard *shard, int64_t vocab)
{
    for (int64_t i = 0; i < shard->count; i++) {
        uint16_t narrow;
        uint32_t token;
        if (shard->token_bytes == 2) {
            memcpy(&narrow, shard->tokens + 2 * i, 2);
            token = narrow;
        } else {
            memcpy(&token, shard->tokens + 4 * i, 4);
        }
        if (token >= vocab)
            return token_fail_beyond(shard->env, shard->path, token, i, vocab);
    }
    return file_map_check(shard->env, shard->path, shard->tokens);
}

/* --- writing -------------------------------------------------------------------------------- */

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
