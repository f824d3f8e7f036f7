/* Any bytes as config.json, generation_config.json and tokenizer_config.json next to a tokenizer:
 * special tokens are none, or added tokens. */
#include "base/status.h"
#include "train/tokenizer/tokenizer_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void quiet(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void check_id(int32_t id)
{
    CHECK(id == -1 || id == 1 || id == 2);
}

static void check_ids(const struct tokenizer_ids *list)
{
    CHECK(list->count >= 0 && list->count <= 2);
    for (int i = 0; i < list->count; i++)
        CHECK(list->ids[i] == 1 || list->ids[i] == 2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true},"
        "{\"id\":2,\"content\":\"</"
        "s>\",\"special\":true}],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}"
        "}";
    struct env env;
    struct tokenizer *t;
    struct text text;
    CHECK_EQ(env_create(&env, quiet, NULL, LOG_ERROR, 1), STATUS_OK);
    CHECK_EQ(tokenizer_parse(&env, json, sizeof json - 1, "fuzz", &t), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(mem_alloc(&env, MEM_OTHER, "file", bytes + 1, &t->files[i].data), STATUS_OK);
        memcpy(t->files[i].data, data, bytes);
        t->files[i].name = "fuzz";
        t->files[i].bytes = bytes;
    }
    CHECK_EQ(special_read(t, (const char *)data, bytes), STATUS_OK);
    check_id(t->eot);
    CHECK(t->special.bos >= -1 && t->special.pad >= -1);
    CHECK_LE(t->special.eos.count, TOKENIZER_IDS);
    check_id(t->special.begin);
    check_ids(&t->special.stops);
    text_init(&text, &env);
    tokenizer_describe_special(t, &text);
    CHECK(text.bytes > 0);
    text_free(&text);
    tokenizer_destroy(t);
    env_destroy(&env);
    return 0;
}
