/* source_shards.c -- maps the token shards of a glob and joins them into one stream.
 *
 * All tokens of the first shard are compared with the vocabulary at startup. Those of the other
 * shards are compared window by window as they are used, so that terabytes need not be read before
 * the first step.
 */
#include "base/file.h"
#include "train/data/source_impl.h"

static enum status same_tokenizer(struct source *source, const struct shard *shard)
{
    const char *first = shard_path(source->shards[0]), *other = shard_path(shard);
    if (shard_token_bytes(shard) != source->token_bytes)
        return FAIL(source->env, CONFIG,
                    "mixed tokenizers: '%s' has tokens of %d bytes, '%s' of %d bytes", first,
                    source->token_bytes, other, shard_token_bytes(shard));
    if (!source->fingerprint)
        source->fingerprint = shard_fingerprint(shard);
    if (shard_fingerprint(shard) && shard_fingerprint(shard) != source->fingerprint)
        return FAIL(source->env, CONFIG,
                    "mixed tokenizers: '%s' was made with another one than '%s'", other, first);
    return STATUS_OK;
}

static enum status open_all(struct source *source, const struct path_list *paths,
                            enum shard_format format)
{
    struct env *env = source->env;
    size_t count = (size_t)paths->count;
    int64_t start = 0;
    TRY(mem_alloc_array(env, MEM_LOADER, "shards", count, sizeof *source->shards, &source->shards));
    TRY(mem_alloc_array(env, MEM_LOADER, "shards", count, sizeof *source->spans, &source->spans));
    for (int i = 0; i < paths->count; i++) {
        struct shard *shard;
        TRY(shard_open(env, paths->paths[i], format, &shard));
        source->shards[source->shard_count++] = shard;
        if (i == 0)
            source->token_bytes = shard_token_bytes(shard);
        TRY(same_tokenizer(source, shard));
        source->spans[i] = (struct token_span){.tokens = shard_tokens(shard),
                                               .token_bytes = shard_token_bytes(shard),
                                               .count = shard_count(shard),
                                               .start = start,
                                               .origin = shard_path(shard)};
        start += shard_count(shard);
    }
    return STATUS_OK;
}

/* The last tokens are held out. The held-out stream begins one token earlier: that token is context
 * only and is never predicted there. */
static void cut_stream(struct source *source, double split)
{
    const struct token_span *last = &source->spans[source->shard_count - 1];
    int64_t total = last->start + last->count;
    int64_t held_out = (int64_t)((double)total * split);
    struct token_stream all = {.spans = source->spans, .span_count = source->shard_count};
    source->train = source->held_out = all;
    source->train.count = total - held_out;
    if (held_out > 0) {
        source->held_out.first = total - held_out - 1;
        source->held_out.count = held_out + 1;
    }
}

enum status source_load_shards(struct source *source, const struct source_spec *spec,
                               enum shard_format format)
{
    struct path_list paths;
    TRY(path_glob(source->env, spec->path, &paths));
    enum status st = open_all(source, &paths, format);
    path_list_free(source->env, &paths);
    TRY(st);
    TRY(shard_check(source->shards[0], spec->vocab));
    if (format != SHARD_LLMC)
        source->token_bytes = 0; /* raw files have no header to compare */
    cut_stream(source, spec->split);
    return STATUS_OK;
}
