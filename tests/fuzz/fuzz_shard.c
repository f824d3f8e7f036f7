/* Any bytes as a token shard of any format: they are refused, or reading token by token gives the
 * same status as checking the whole shard. The first byte selects the format. */
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "train/data/shard.h"
#include "train/data/token_stream.h"

#define VOCAB 50257

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void read_shard(struct env *env, const struct shard *shard)
{
    struct token_span span = {.tokens = shard_tokens(shard),
                              .token_bytes = shard_token_bytes(shard),
                              .count = shard_count(shard),
                              .origin = shard_path(shard)};
    struct token_stream stream = {.spans = &span, .span_count = 1, .count = span.count};
    enum status all = shard_check(shard, VOCAB), windows = STATUS_OK;
    for (int64_t i = 0; i < stream.count && windows == STATUS_OK; i++) {
        int32_t token;
        windows = token_stream_read(&stream, env, i, 1, VOCAB, &token);
    }
    CHECK_EQ(all, windows);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    struct shard *shard;
    if (bytes == 0 || env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    enum shard_format format = (enum shard_format)(data[0] % 3);
    if (shard_open_memory(&env, data + 1, bytes - 1, "input", format, &shard) == STATUS_OK) {
        read_shard(&env, shard);
        shard_close(shard);
    }
    env_destroy(&env);
    return 0;
}
