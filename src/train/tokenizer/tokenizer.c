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

static void vocab_free(struct env *env, struct vocab *vocab)
{
    mem_free(env, vocab->blob);
    mem_free(env, vocab->tokens);
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_destroy(t->bpe);
    splitter_destroy(t->splitter);
    normalizer_destroy(t->normalizer);
    for (int i = 0; i < 2; i++) {
        mem_free(t->env, t->added[i].list);
        text_free(&t->added[i].contents);
        token_list_free(t->env, &t->template[i]);
    }
    vocab_free(t->env, &t->decoded);
    vocab_free(t->env, &t->vocab);
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

bool tokenizer_is_byte_level(const struct tokenizer *t)
{
    return t->byte_level;
}

int tokenizer_eot(const struct tokenizer *t)
{
    return t->eot;
}

uint64_t tokenizer_hash(const struct tokenizer *t)
{
    return XXH3_64bits(t->source, t->source_bytes);
}

const int32_t *tokenizer_template(const struct tokenizer *t, bool end, int64_t *count)
{
    *count = t->template[end].count;
    return t->template[end].ids;
}

const void *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *bytes)
{
    const struct vocab *vocab = t->decoded.tokens ? &t->decoded : &t->vocab;
    if (id < 0 || id >= vocab->count || !(vocab->tokens[id].flags & TOKEN_USED))
        return NULL;
    *bytes = vocab->tokens[id].bytes;
    return vocab->blob + vocab->tokens[id].at;
}

/* Remove data[at .. at + bytes) of a text. */
static void cut(struct text *out, size_t at, size_t bytes)
{
    if (!bytes)
        return;
    memmove(out->data + at, out->data + at + bytes, out->bytes - at - bytes);
    out->bytes -= bytes;
    out->data[out->bytes] = 0;
}

/* Metaspace's decoder removes the spaces that markers of the first token have become. A token of
 * plain spaces keeps them. */
static void drop_first(const struct tokenizer *t, int32_t id, struct text *out, size_t start)
{
    const struct token *token = &t->vocab.tokens[id];
    const uint8_t *spelling = t->vocab.blob + token->at;
    size_t length = strlen(t->decoding.first_drops), at = start;
    for (size_t i = 0; i < token->bytes;) {
        if (token->bytes - i >= length && !memcmp(spelling + i, t->decoding.first_drops, length)) {
            cut(out, at, 1);
            i += length;
        } else {
            i++;
            at++;
        }
    }
}

/* Remove the decoder's character from both ends of what was added to `out` after `start`. */
static void strip(const struct decoding *decoding, struct text *out, size_t start)
{
    size_t length = strlen(decoding->strip), from = start;
    for (int64_t i = 0; i < decoding->end && out->bytes - start >= length &&
                        memcmp(out->data + out->bytes - length, decoding->strip, length) == 0;
         i++)
        cut(out, out->bytes - length, length);
    for (int64_t i = 0; i < decoding->start && out->bytes - from >= length &&
                        memcmp(out->data + from, decoding->strip, length) == 0;
         i++)
        from += length;
    cut(out, start, from - start);
}

enum status tokenizer_decode_part(const struct tokenizer *t, const int32_t *ids, int64_t count,
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

enum status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                             struct text *out)
{
    size_t start = out->bytes;
    TRY(tokenizer_decode_part(t, ids, count, out));
    if (count && t->decoding.first_drops[0])
        drop_first(t, ids[0], out, start);
    if (out->bytes > start && t->decoding.strip[0])
        strip(&t->decoding, out, start);
    return STATUS_OK;
}
