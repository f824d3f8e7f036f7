/* Any bytes as a config.json: they are refused, or the printed config parses to the same sizes. */
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "train/weights/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void round_trip(struct env *env, const struct hf_config *config)
{
    struct hf_config back;
    struct text text;
    text_init(&text, env);
    hf_config_print(config, &text);
    CHECK_EQ(hf_config_parse(env, text.data, text.bytes, "output", &back), STATUS_OK);
    CHECK_EQ(back.width, config->width);
    CHECK_EQ(back.head_dim, config->head_dim);
    CHECK_EQ(back.rope_original, config->rope_original);
    CHECK(back.rope_theta == config->rope_theta && back.eps == config->eps);
    text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    struct hf_config config;
    if (env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    if (hf_config_parse(&env, (const char *)data, bytes, "input", &config) == STATUS_OK)
        round_trip(&env, &config);
    env_destroy(&env);
    return 0;
}
