/* Any bytes as JSON lines: they are refused with a line number, or visited in order, with strings
 * of the stated length. */
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "train/data/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static enum status visit(void *user, const struct jsonl_document *document)
{
    int64_t *line = user;
    CHECK(document->text && document->text[document->text_bytes] == 0);
    CHECK(!document->prompt || document->prompt[document->prompt_bytes] == 0);
    CHECK_LT(*line, document->line);
    *line = document->line;
    return STATUS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    int64_t line = 0;
    if (env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    (void)jsonl_parse(&env, (const char *)data, bytes, "input", visit, &line);
    env_destroy(&env);
    return 0;
}
