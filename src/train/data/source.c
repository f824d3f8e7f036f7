/* source.c -- detection, token shards, fingerprints, digests. source_encoded.c loads text and JSONL.
 *
 * All tokens of the first shard are compared with the vocabulary at startup. Those of the other
 * shards are compared window by window as they are used, so that terabytes need not be read before
 * the first step.
 */
#include "train/data/source.h"
#include <string.h>
#include <xxhash.h>
#include "base/text.h"
#include "base/file.h"
#include "train/data/shard.h"
#include "train/data/text_files.h"

/* --- detection ------------------------------------------------------------------------------ */

/* Is the first character, after a byte order mark and white space, that of an object or array? */
static bool begins_json(const struct file_map *map)
{
    size_t at = map->bytes >= 3 && memcmp(map->data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < map->bytes && memchr(" \t\r\n", map->data[at], 4))
        at++;
    return at < map->bytes && (map->data[at] == '{' || map->data[at] == '[');
}

static enum status detect_bytes(struct env *env, const char *path, const struct file_map *map,
                                enum data_format *found)
{
    if (shard_is_llmc(map->data, map->bytes)) {
        *found = DATA_TOKENS;
        return STATUS_OK;
    }
    if (text_ends_with(path, ".bin")) /* may be raw ids or anything else: do not guess */
        return FAIL(env, FORMAT,
                    "'%s' has no token shard header; set data.format=u16 or u32 for raw token ids, "
                    "or data.format=text or jsonl (sifr tokenize: --format)",
                    path);
    if (text_ends_with(path, ".json") && begins_json(map))
        return FAIL(env, FORMAT,
                    "'%s' is JSON and is not read as text: if every line is an object, set "
                    "data.format=jsonl; to train on the JSON itself, set data.format=text (sifr "
                    "tokenize: --format)",
                    path);
    bool jsonl = text_ends_with(path, ".jsonl") || text_ends_with(path, ".ndjson");
    *found = jsonl ? DATA_JSONL : DATA_TEXT;
    return text_file_check(env, path, map); /* do not trust the name alone */
}

static enum status detect_file(struct env *env, const char *path, enum data_format *found)
{
    struct file_map map;
    TRY(file_map_open(env, path, &map));
    enum status st = detect_bytes(env, path, &map, found);
    if (st == STATUS_OK)
        st = file_map_check(env, path, map.data);
    file_map_close(&map);
    return st;
}

static enum status detect_all(struct env *env, const char *pattern, const struct path_list *list,
                              enum data_format *found)
{
    static const char *const kinds[] = {
        [DATA_TEXT] = "text", [DATA_TOKENS] = "a token shard", [DATA_JSONL] = "JSONL"};
    TRY(detect_file(env, list->paths[0], found));
    for (int i = 1; i < list->count; i++) {
        enum data_format other = DATA_AUTO;
        TRY(detect_file(env, list->paths[i], &other));
        if (other != *found)
            return FAIL(env, CONFIG,
                        "'%s' matches files of several kinds: '%s' is %s, '%s' is %s; name every "
                        "kind apart (to train on: data.mix), or say by data.format what all of "
                        "them hold (sifr tokenize: --format)",
                        pattern, list->paths[0], kinds[*found], list->paths[i], kinds[other]);
    }
    return STATUS_OK;
}

enum status source_detect(struct env *env, const char *path, enum data_format format,
                          enum data_format *found)
{
    struct path_list list;
    *found = format;
    if (format != DATA_AUTO)
        return STATUS_OK;
    TRY(path_glob(env, path, &list));
    enum status st = detect_all(env, path, &list, found);
    path_list_free(env, &list);
    return st;
}

uint64_t source_tokenizer_fingerprint(const struct tokenizer *tokenizer)
{
    uint64_t hash = 0;
    for (int32_t id = 0; id < tokenizer_vocab(tokenizer); id++) {
        size_t bytes = 0;
        const void *token = tokenizer_token(tokenizer, id, &bytes);
        hash = XXH64(token ? token : "", token ? bytes : 0, hash + (token ? 1 : 2));
    }
    return hash ? hash : 1;
}

/* --- token shards --------------------------------------------------------------------------- */

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

static enum status load_shards(struct source *source, const struct source_spec *spec,
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

/* --- the source ----------------------------------------------------------------------------- */

static enum status load(struct source *source, const struct source_spec *spec)
{
    enum data_format format;
    TRY(source_detect(source->env, spec->path, spec->format, &format));
    source->format = format;
    if (format == DATA_TOKENS)
        return load_shards(source, spec, SHARD_LLMC);
    if (format == DATA_U16 || format == DATA_U32)
        return load_shards(source, spec, format == DATA_U16 ? SHARD_U16 : SHARD_U32);
    if (!spec->tokenizer)
        return FAIL(source->env, CONFIG, "'%s' is text: it needs a tokenizer (data.tokenizer)",
                    spec->path);
    source->fingerprint = source_tokenizer_fingerprint(spec->tokenizer);
    return source_load_encoded(source, spec);
}

enum status source_create(struct env *env, const struct source_spec *spec, struct source **source)
{
    struct source *s;
    enum status st;
    CHECK(spec->split >= 0 && spec->split < 1);
    TRY(mem_alloc(env, MEM_LOADER, "source", sizeof *s, &s));
    s->env = env;
    TRY_OR(undo_source, mem_strdup(env, spec->path, &s->path));
    TRY_OR(undo_source, load(s, spec));
    *source = s;
    return STATUS_OK;
undo_source:
    source_destroy(s);
    return st;
}

void source_destroy(struct source *source)
{
    if (!source)
        return;
    struct env *env = source->env;
    token_cache_close(source->cache);
    for (int i = 0; i < source->shard_count; i++)
        shard_close(source->shards[i]);
    mem_free(env, source->spans);
    mem_free(env, source->shards);
    mem_free(env, source->path);
    mem_free(env, source);
}

uint64_t source_mapped_bytes(const struct source *source)
{
    uint64_t bytes = source->cache && !source->cache->private ? source->cache->bytes : 0;
    for (int i = 0; i < source->shard_count; i++)
        bytes += shard_bytes(source->shards[i]);
    return bytes;
}

enum status source_digest(const struct source *source, struct data_digest *digest, int *kind)
{
    struct data_span *spans;
    /* The width of tokens is part of the kind: digests of different widths cannot be compared. */
    *kind = source->shard_count == 0            ? (int)source->format
            : source->spans[0].token_bytes == 2 ? DATA_U16
                                                : DATA_U32;
    *digest = source->digest;
    if (source->shard_count == 0)
        return STATUS_OK;
    TRY(mem_alloc_array(source->env, MEM_OTHER, "data spans", (size_t)source->shard_count,
                        sizeof *spans, &spans));
    for (int i = 0; i < source->shard_count; i++) {
        const struct token_span *span = &source->spans[i];
        spans[i] = (struct data_span){
            span->tokens, (uint64_t)span->count * (uint64_t)span->token_bytes, span->origin};
    }
    data_digest_compute(spans, source->shard_count, DATA_DIGEST_WHOLE, digest);
    mem_free(source->env, spans);
    return STATUS_OK;
}

bool source_cache_key(const struct source *source, struct token_cache_key *key)
{
    *key = source->key;
    return source->cache && !source->cache->private;
}
