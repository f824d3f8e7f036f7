/* tokenizer -- loads, saves and destroys tokenizers, and decodes ids to bytes.
 *
 * tokenizer_json.c parses tokenizer.json, tokenizer_write.c writes one, tokenizer_train.c learns a
 * vocabulary, tokenizer_encode.c encodes.
 */
#include <xxhash.h>
#include "base/file.h"
#include "train/tokenizer/tokenizer_impl.h"

enum status tokenizer_bytes(struct env *env, struct tokenizer **tokenizer)
{
    uint8_t order[256];
    for (int i = 0; i < 256; i++)
        order[i] = (uint8_t)i;
    return tokenizer_build(env, order, NULL, 0, "bytes", tokenizer);
}

static enum status load_file(struct env *env, const char *path, struct tokenizer **tokenizer)
{
    char *json;
    size_t bytes;
    TRY(file_read(env, path, TOKENIZER_FILE_LIMIT, &json, &bytes));
    enum status st = tokenizer_parse(env, json, bytes, path, tokenizer);
    mem_free(env, json);
    if (st == STATUS_OK && (st = special_load(*tokenizer, path)) != STATUS_OK) {
        tokenizer_destroy(*tokenizer);
        *tokenizer = NULL;
    }
    return st;
}

enum status tokenizer_load(struct env *env, const char *path, struct tokenizer **tokenizer)
{
    char *inside;
    if (strcmp(path, "bytes") == 0)
        return tokenizer_bytes(env, tokenizer);
    if (!dir_exists(path))
        return load_file(env, path, tokenizer);
    TRY(path_join(env, path, "tokenizer.json", &inside));
    enum status st = load_file(env, inside, tokenizer);
    mem_free(env, inside);
    return st;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_destroy(t->bpe);
    splitter_destroy(t->splitter);
    for (int pass = 0; pass < 2; pass++)
        mem_free(t->env, t->added[pass].list);
    mem_free(t->env, t->vocab.blob);
    mem_free(t->env, t->vocab.tokens);
    mem_free(t->env, t->source);
    special_free(t);
    mem_free(t->env, t);
}

enum status tokenizer_save(const struct tokenizer *t, const char *path)
{
    return file_write_atomic(t->env, path, t->source, t->source_bytes);
}

int tokenizer_vocab(const struct tokenizer *t)
{
    return t->vocab.count;
}

int tokenizer_eot(const struct tokenizer *t)
{
    return t->eot;
}

uint64_t tokenizer_hash(const struct tokenizer *t)
{
    return XXH3_64bits(t->source, t->source_bytes);
}

const void *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *bytes)
{
    if (id < 0 || id >= t->vocab.count || !(t->vocab.tokens[id].flags & TOKEN_USED))
        return NULL;
    *bytes = t->vocab.tokens[id].bytes;
    return t->vocab.blob + t->vocab.tokens[id].at;
}

enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                             struct text *out)
{
    for (int64_t i = 0; i < count; i++) {
        size_t bytes;
        const void *token = tokenizer_token(t, ids[i], &bytes);
        if (!token)
            return FAIL(t->env, FORMAT,
                        "id %d at index %lld is not a token of this vocabulary (%d ids)", ids[i],
                        (long long)i, t->vocab.count);
        text_add_bytes(out, token, bytes);
    }
    return out->status;
}
