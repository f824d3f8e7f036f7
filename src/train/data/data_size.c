#include "train/data/data_size.h"
#include <string.h>
#include "base/file.h"
#include "train/data/jsonl.h"
#include "train/data/shard.h"
#include "train/data/text_files.h"
#include "train/data/token_packer.h"

enum { SAMPLES = 16, SAMPLE_BYTES = 1 << 16 }; /* samples of the text, maximum bytes of each */
#define LEARNT_RATE 0.3 /* tokens per byte for a tokenizer that is not trained yet */

/* --- text that has not been encoded --------------------------------------------------------- */

struct text_sampling {
    struct encoder *encoder;
    struct token_list ids;
    bool special;
    int64_t documents;
};

static enum status sample_document(void *user, const struct jsonl_document *document)
{
    struct text_sampling *s = user;
    s->documents++;
    TRY(tokenizer_encode(s->encoder, document->prompt, document->prompt_bytes, s->special,
                         &s->ids));
    return tokenizer_encode(s->encoder, document->text, document->text_bytes, s->special, &s->ids);
}

/* Encode a sample of a file near offset `at`; *bytes = its length. It begins with a line if one
 * begins there; for JSONL it also ends with a line. */
static enum status encode_sample(struct env *env, struct text_sampling *s,
                                 const struct text_file *file, size_t at, bool jsonl, size_t *bytes)
{
    const uint8_t *text = file->map.data;
    size_t end = file->map.bytes - at > SAMPLE_BYTES ? at + SAMPLE_BYTES : file->map.bytes;
    const uint8_t *line = at > 0 ? memchr(text + at, '\n', end - at) : NULL;
    size_t begin = line ? (size_t)(line - text) + 1 : at;
    if (jsonl && end < file->map.bytes)
        for (; end > begin && text[end - 1] != '\n';)
            end--;
    *bytes = end - begin;
    if (jsonl)
        return jsonl_parse(env, (const char *)text + begin, *bytes, file->path, sample_document, s);
    return tokenizer_encode(s->encoder, text + begin, *bytes, s->special, &s->ids);
}

static enum status sample_rate(struct env *env, const struct source_spec *spec, bool jsonl,
                               const struct text_files *files, double *rate)
{
    struct text_sampling s = {.special = spec->special};
    size_t total = 0, bytes = 0, before = 0, step = files->bytes / SAMPLES + 1, next = 0;
    enum status st = STATUS_OK;
    TRY(encoder_create(env, spec->tokenizer, &s.encoder));
    for (int i = 0; i < files->count && st == STATUS_OK; i++) {
        size_t end = before + files->files[i].map.bytes;
        for (; next < end && st == STATUS_OK; next += step) {
            st = encode_sample(env, &s, &files->files[i], next - before, jsonl, &bytes);
            total += bytes;
        }
        before = end;
    }
    *rate = total > 0 ? (double)(s.ids.count + s.documents) / (double)total : 1;
    token_list_free(env, &s.ids);
    encoder_destroy(s.encoder);
    return st;
}

static enum status add_text(struct env *env, const struct source_spec *spec, bool jsonl,
                            struct data_size *size)
{
    struct text_files files;
    int64_t tokens;
    size_t bytes;
    double rate = LEARNT_RATE;
    enum status st = STATUS_OK;
    TRY(text_files_open(env, spec->path, spec->split, jsonl, &files));
    if (!spec->cache || !spec->tokenizer || !dir_exists(spec->cache) ||
        !token_cache_peek(env, spec->cache, source_text_key(spec, jsonl, &files), &tokens,
                          &bytes)) {
        if (spec->tokenizer)
            TRY_OR(done, sample_rate(env, spec, jsonl, &files, &rate));
        tokens = (int64_t)((double)files.bytes * rate) + files.count + 1;
        bytes = (size_t)tokens * (size_t)token_packer_width(spec->vocab) + 4096;
        size->exact = false;
    }
    size->tokens += tokens;
    size->bytes += bytes;
done:
    text_files_close(env, &files);
    return st;
}

/* --- tokens --------------------------------------------------------------------------------- */

static enum status add_shards(struct env *env, const char *path, enum shard_format format,
                              struct data_size *size)
{
    struct path_list paths;
    enum status st = STATUS_OK;
    TRY(path_glob(env, path, &paths));
    for (int i = 0; i < paths.count && st == STATUS_OK; i++) {
        struct shard *shard;
        st = shard_open(env, paths.paths[i], format, &shard);
        if (st != STATUS_OK)
            break;
        size->tokens += shard_count(shard);
        size->bytes += shard_bytes(shard);
        shard_close(shard);
    }
    path_list_free(env, &paths);
    return st;
}

/* --- all sources ---------------------------------------------------------------------------- */

static enum status add_source(struct env *env, const struct source_spec *spec,
                              struct data_size *size)
{
    enum data_format format;
    TRY(source_detect(env, spec->path, spec->format, &format));
    switch (format) {
    case DATA_U16: return add_shards(env, spec->path, SHARD_U16, size);
    case DATA_U32: return add_shards(env, spec->path, SHARD_U32, size);
    case DATA_TOKENS: return add_shards(env, spec->path, SHARD_LLMC, size);
    default: return add_text(env, spec, format == DATA_JSONL, size);
    }
}

static enum status add_all(struct env *env, const struct data_config *data, struct source_spec spec,
                           struct data_size *size)
{
    struct data_plan plan;
    TRY(data_plan_make(env, data, &plan));
    spec.split = plan.split;
    for (int i = 0; i < plan.count; i++) {
        struct data_mix_item item = data_plan_item(data, i);
        spec.path = item.path;
        spec.format = (enum data_format)item.format;
        TRY(add_source(env, &spec, size));
    }
    if (!plan.val)
        return STATUS_OK;
    spec.path = plan.val;
    spec.format = (enum data_format)data->format;
    spec.split = 0;
    return add_source(env, &spec, size);
}

enum status data_size_find(struct env *env, const struct data_config *data,
                           const struct tokenizer *tokenizer, int64_t vocab, const char *folder,
                           struct data_size *size)
{
    struct env quiet = *env;
    char *cache = NULL;
    *size = (struct data_size){.exact = true};
    if (!data_is_given(data))
        return STATUS_OK;
    bool shared = data->cache && *data->cache;
    if (folder && !shared)
        TRY(path_join(env, folder, "cache", &cache));
    const struct source_spec spec = {.special = data->special,
                                     .tokenizer = tokenizer,
                                     .vocab = tokenizer ? tokenizer_vocab(tokenizer) : vocab,
                                     .cache = shared ? data->cache : cache};
    quiet.log = log_create(NULL, NULL, LOG_ERROR);
    size->known = quiet.log && add_all(&quiet, data, spec, size) == STATUS_OK;
    log_destroy(quiet.log);
    mem_free(env, cache);
    return STATUS_OK;
}

void data_size_describe(const struct data_size *size, struct text *text)
{
    char a[32], b[32];
    text_printf(text, "%s%s tokens in %s, mapped: one copy for all ranks of a host",
                size->exact ? "" : "about ", text_human_count(a, (double)size->tokens),
                text_human_bytes(b, (double)size->bytes));
}
