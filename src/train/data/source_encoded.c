/* source_encoded.c -- encodes text and JSONL once, and keeps the tokens in a cache.
 *
 *     hash the text -> look for its tokens in the cache -> if missing, one of the ranks that share
 *                                                          the folder encodes; the others wait
 *
 * Every byte of the text is hashed: XXH3 is faster than a disk. If the cache cannot be written, a
 * warning is logged and the tokens are kept in this rank's memory, in the same narrow type.
 * Commands without a run folder also keep them in memory.
 *
 * If the tokenizer has a token that begins texts, every document begins with it; otherwise the stream
 * begins with end-of-text. End-of-text follows every document that ends in the stream. The document
 * that the cut divides does not end in the training stream.
 *
 * While encoding, only a few thousand tokens are in memory at a time, and the text is mapped.
 */
#include <xxhash.h>
#include "base/progress.h"
#include "train/data/jsonl.h"
#include "train/data/source.h"
#include "train/data/text_files.h"

/* An encoder, and the writer that receives its tokens. */
struct encoding {
    struct env *env;
    const struct source_spec *spec;
    struct encoder *encoder;
    struct token_cache_writer *writer;
    const struct text_file *file; /* the file that is being read */
    bool masked;                  /* the current tokens are never predicted */
    struct progress_task task;    /* bytes of text */
};

/* --- documents ------------------------------------------------------------------------------ */

static enum status add_ids(void *user, const int32_t *ids, int64_t count)
{
    struct encoding *e = user;
    enum { SAMPLE = 16 }; /* one token in so many is looked up: that is enough for a bar */
    uint64_t text = 0;
    for (int64_t i = 0; i < count; i += SAMPLE) {
        size_t bytes = 0;
        tokenizer_token(e->spec->tokenizer, ids[i], &bytes);
        text += bytes * (uint64_t)(count - i < SAMPLE ? count - i : SAMPLE);
    }
    progress_advance(e->env, &e->task, text);
    return token_cache_writer_add(e->writer, ids, count, e->masked);
}

static enum status add_text(struct encoding *e, const void *text, size_t bytes, bool masked)
{
    e->masked = masked;
    return tokenizer_encode_each(e->encoder, text, bytes, e->spec->special, add_ids, e);
}

static enum status add_special(struct encoding *e, int32_t id)
{
    return id < 0 ? STATUS_OK : token_cache_writer_add(e->writer, &id, 1, false);
}

static enum status add_end(struct encoding *e)
{
    return add_special(e, tokenizer_eot(e->spec->tokenizer));
}

/* Begin a document in the training part (0) or in the held-out part (1). */
static enum status begin_document(struct encoding *e, int part)
{
    if (part == 1)
        token_cache_writer_hold_out(e->writer);
    int32_t begin = tokenizer_special(e->spec->tokenizer)->begin;
    if (begin >= 0)
        return add_special(e, begin);
    return token_cache_writer_count(e->writer) == 0 ? add_end(e) : STATUS_OK;
}

static enum status add_part(struct encoding *e, int part, const void *text, size_t bytes, bool ends)
{
    if (bytes == 0)
        return STATUS_OK;
    TRY(begin_document(e, part));
    TRY(add_text(e, text, bytes, false));
    return ends ? add_end(e) : STATUS_OK;
}

/* A line of JSONL; its prompt is masked. */
static enum status add_document(void *user, const struct jsonl_document *document)
{
    struct encoding *e = user;
    if (document->prompt_bytes + document->text_bytes == 0)
        return STATUS_OK; /* skipped like an empty file, as `sifr tokenize` does */
    TRY(begin_document(e, document->offset >= e->file->cut));
    if (document->prompt)
        TRY(add_text(e, document->prompt, document->prompt_bytes, true));
    TRY(add_text(e, document->text, document->text_bytes, false));
    return add_end(e);
}

static enum status add_file(struct encoding *e, const struct text_file *file, bool jsonl)
{
    const struct file_map *map = &file->map;
    size_t rest = map->bytes - file->cut;
    e->file = file;
    if (jsonl)
        return jsonl_parse(e->env, (const char *)map->data, map->bytes, file->path, add_document,
                           e);
    if (map->bytes == 0)
        return STATUS_OK;
    TRY(add_part(e, 0, map->data, file->cut, rest == 0));
    TRY(add_part(e, 1, map->data + file->cut, rest, true));
    return file_map_check(e->env, file->path, map->data);
}

/* --- the key -------------------------------------------------------------------------------- */

enum { ENCODING_VERSION = 1 }; /* increment if the same text gives different tokens */

struct token_cache_key source_text_key(const struct source_spec *spec, bool jsonl,
                                       const struct text_files *files)
{
    struct token_cache_key key = {0};
    const uint64_t how[] = {ENCODING_VERSION, jsonl, spec->special, tokenizer_hash(spec->tokenizer),
                            (uint64_t)files->count};
    const int32_t special[] = {tokenizer_special(spec->tokenizer)->begin,
                               tokenizer_eot(spec->tokenizer)};
    key.how = XXH3_64bits_withSeed(special, sizeof special, XXH3_64bits(how, sizeof how));
    for (int i = 0; i < files->count; i++) {
        const struct text_file *file = &files->files[i];
        const uint64_t text[] = {file->map.bytes, XXH3_64bits(file->map.data, file->map.bytes)};
        key.text = XXH3_64bits_withSeed(text, sizeof text, key.text);
        key.how = XXH3_64bits_withSeed(&file->cut, sizeof file->cut, key.how);
    }
    return key;
}

/* --- encoding ------------------------------------------------------------------------------- */

static enum status encode_all(struct encoding *e, bool jsonl, const struct text_files *files,
                              struct token_cache **cache)
{
    enum status st = STATUS_OK;
    progress_begin(&e->task, "encoding", NULL, files->bytes);
    for (int i = 0; st == STATUS_OK && i < files->count; i++)
        st = add_file(e, &files->files[i], jsonl);
    progress_end(e->env, &e->task);
    TRY(st);
    token_cache_writer_hold_out(e->writer);
    if (token_cache_writer_total(e->writer) == 0)
        return FAIL(e->env, FORMAT, "no text in '%s'", e->spec->path);
    return token_cache_writer_finish(e->writer, cache);
}

/* `folder` NULL = in memory. *refused = the folder could not be written to, and a warning was
 * logged. */
static enum status encode(struct source *source, const struct source_spec *spec,
                          const struct text_files *files, const char *folder, bool *refused)
{
    struct env *env = source->env;
    struct encoding e = {.env = env, .spec = spec};
    enum status st;
    *refused = false;
    TRY(encoder_create(env, spec->tokenizer, &e.encoder));
    TRY_OR(undo_encoder, token_cache_writer_create(env, folder, source->key,
                                                   tokenizer_vocab(spec->tokenizer), &e.writer));
    st = encode_all(&e, source->format == DATA_JSONL, files, &source->cache);
    *refused = st != STATUS_OK && *token_cache_writer_refusal(e.writer);
    if (*refused)
        log_warn(env,
                 "the tokens of '%s' cannot be kept in '%s': %s; this rank holds its own copy in "
                 "memory, and the next start encodes the text again",
                 spec->path, folder, token_cache_writer_refusal(e.writer));
    token_cache_writer_destroy(e.writer);
undo_encoder:
    encoder_destroy(e.encoder);
    return st;
}

static enum status take_tokens(struct source *source, const struct source_spec *spec,
                               const struct text_files *files)
{
    struct env *env = source->env;
    bool refused = false;
    int lock;
    source->key = source_text_key(spec, source->format == DATA_JSONL, files);
    source->digest = data_digest_hashed(files->count, files->bytes, source->key.text);
    if (spec->cache && *spec->cache) {
        TRY(token_cache_lock(env, spec->cache, &lock)); /* only the first rank has to encode */
        enum status st = token_cache_open(env, spec->cache, source->key, &source->cache);
        if (st == STATUS_OK && !source->cache)
            st = encode(source, spec, files, spec->cache, &refused);
        token_cache_unlock(lock);
        if (!refused)
            TRY(st);
    }
    return source->cache ? STATUS_OK : encode(source, spec, files, NULL, &refused);
}

static void make_streams(struct source *source)
{
    const struct token_cache *cache = source->cache;
    source->span = (struct token_span){.tokens = cache->tokens,
                                       .token_bytes = cache->token_bytes,
                                       .count = cache->train + cache->held_out,
                                       .origin = source->path,
                                       .file = cache->path};
    const struct token_stream all = {.spans = &source->span, .span_count = 1};
    source->train = source->held_out = all;
    source->train.count = cache->train;
    source->train.mask = cache->masked[0] ? cache->mask : NULL;
    source->held_out.first = cache->train;
    source->held_out.count = cache->held_out;
    source->held_out.mask = cache->masked[1] ? cache->mask : NULL;
}

enum status source_load_encoded(struct source *source, const struct source_spec *spec)
{
    struct text_files files;
    TRY(text_files_open(source->env, spec->path, spec->split, source->format == DATA_JSONL,
                        &files));
    text_files_tell_binary(source->env, &files);
    enum status st = take_tokens(source, spec, &files);
    if (st == STATUS_OK)
        make_streams(source);
    text_files_close(source->env, &files);
    return st;
}
