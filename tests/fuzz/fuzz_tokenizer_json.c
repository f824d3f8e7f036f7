/* Any bytes as a tokenizer.json: they are refused with a message, or give a tokenizer whose decode
 * inverts its encode. */
#include "base/status.h"
#include "train/tokenizer/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void quiet(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static bool source_has(const struct tokenizer *tokenizer, const char *word)
{
    return memmem(tokenizer->source, tokenizer->source_bytes, word, strlen(word)) != NULL;
}

/* BPE over characters has a vocabulary of decoded tokens, and may have no token for some. */
static bool changes_text(const struct tokenizer *tokenizer)
{
    bool changes = tokenizer->sectioning.scheme != PREFIX_NEVER ||
                   tokenizer->sectioning.replaces_spaces || tokenizer->decoded.tokens ||
                   !normalizer_is_empty(tokenizer->normalizer) ||
                   source_has(tokenizer, "Removed") || source_has(tokenizer, "\\u");
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < tokenizer->added[pass].count; i++)
            changes |=
                tokenizer->added[pass].list[i].lstrip || tokenizer->added[pass].list[i].rstrip;
    return changes;
}

static void round_trip(struct env *env, struct encoder *encoder, const struct tokenizer *tokenizer,
                       const void *text, size_t bytes, bool special)
{
    struct token_list ids = {0};
    struct text back;
    text_init(&back, env);
    if (tokenizer_encode(encoder, text, bytes, special, &ids) == STATUS_OK) {
        CHECK_EQ(tokenizer_decode(tokenizer, ids.ids, ids.count, &back), STATUS_OK);
        if (!changes_text(tokenizer)) {
            CHECK_EQ(back.bytes, bytes);
            CHECK(bytes == 0 || memcmp(back.data, text, bytes) == 0);
        }
    }
    text_free(&back);
    token_list_free(env, &ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char text[] = "aab ab  abba<x>\n'b\xc3\xa9\xff <y> a1b";
    struct env env;
    struct tokenizer *tokenizer;
    struct encoder *encoder;
    CHECK_EQ(env_create(&env, quiet, NULL, LOG_ERROR, 1), STATUS_OK);
    if (tokenizer_parse(&env, (const char *)data, bytes, "fuzz", &tokenizer) == STATUS_OK) {
        CHECK_EQ(encoder_create(&env, tokenizer, &encoder), STATUS_OK);
        for (int special = 0; special < 2; special++) {
            round_trip(&env, encoder, tokenizer, text, sizeof text - 1, special);
            round_trip(&env, encoder, tokenizer, text, 8, special); /* letters and spaces only */
            round_trip(&env, encoder, tokenizer, data, bytes < 200 ? bytes : 200, special);
        }
        encoder_destroy(encoder);
        tokenizer_destroy(tokenizer);
    } else {
        CHECK(log_first_error(env.log)[0] != 0);
    }
    env_destroy(&env);
    return 0;
}
