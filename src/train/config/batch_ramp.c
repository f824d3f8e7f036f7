/* batch_ramp -- parses the list and looks batches up in it. */
#include "train/config/batch_ramp.h"
#include <stdio.h>
#include <string.h>

enum { NUMBER_BYTES = 32 };

/* --- parsing -------------------------------------------------------------------------------- */

/* The number in text[0 .. bytes-1], at least 1. */
static bool read_number(const char *text, size_t bytes, int64_t *value)
{
    char number[NUMBER_BYTES];
    if (bytes >= sizeof number)
        return false;
    snprintf(number, sizeof number, "%.*s", (int)bytes, text);
    return options_read_integer(number, value) && *value >= 1;
}

static enum status read_item(struct env *env, const char *text, size_t bytes,
                             struct batch_ramp_item *item)
{
    const char *at = memchr(text, '@', bytes);
    size_t size_bytes = at ? (size_t)(at - text) : 0, rest = at ? bytes - size_bytes - 1 : 0;
    if (bytes == 0)
        return FAIL(env, CONFIG,
                    "train.batch_ramp: an item is empty; write SIZE@TOKENS items with one comma "
                    "between them, as in 16@2M,32@8M");
    if (!at)
        return FAIL(env, CONFIG,
                    "train.batch_ramp: '%.*s' has no '@'; write SIZE@TOKENS, as in 16@2M,32@8M",
                    (int)bytes, text);
    if (!read_number(text, size_bytes, &item->batch))
        return FAIL(env, CONFIG,
                    "train.batch_ramp: the size '%.*s' in '%.*s' is not a whole number above 0; "
                    "write SIZE@TOKENS, as in 16@2M",
                    (int)size_bytes, text, (int)bytes, text);
    if (!read_number(at + 1, rest, &item->tokens))
        return FAIL(env, CONFIG,
                    "train.batch_ramp: the tokens '%.*s' in '%.*s' are not a whole number above "
                    "0; write SIZE@TOKENS, as in 16@2M",
                    (int)rest, at + 1, (int)bytes, text);
    return STATUS_OK;
}

/* A size instead of the item's, as near above or below as possible: a multiple of the micro-batch
 * between the size before and the global batch; 0 = no size fits. */
static int64_t find_size(int64_t batch, int64_t before, int64_t micro_batch, int64_t global_batch)
{
    int64_t below = batch - batch % micro_batch, above = below + micro_batch;
    if (before < above && above < global_batch)
        return above;
    return before < below && below < global_batch ? below : 0;
}

static enum status refuse_size(struct env *env, int64_t batch, int64_t before, int64_t micro_batch,
                               int64_t global_batch)
{
    int64_t size = find_size(batch, before, micro_batch, global_batch);
    if (size > 0)
        return FAIL(env, CONFIG,
                    "train.batch_ramp: %lld is not a multiple of train.micro_batch %lld; try %lld",
                    (long long)batch, (long long)micro_batch, (long long)size);
    return FAIL(env, CONFIG,
                "train.batch_ramp: %lld is not a multiple of train.micro_batch %lld; leave it out, "
                "or lower train.micro_batch",
                (long long)batch, (long long)micro_batch);
}

/* `before` is NULL for the first item. */
static enum status check_item(struct env *env, const struct batch_ramp_item *item,
                              const struct batch_ramp_item *before, int64_t micro_batch,
                              int64_t global_batch)
{
    long long batch = item->batch;
    if (item->batch % micro_batch != 0)
        return refuse_size(env, item->batch, before ? before->batch : 0, micro_batch, global_batch);
    if (item->batch >= global_batch)
        return FAIL(env, CONFIG,
                    "train.batch_ramp: %lld is not below train.global_batch %lld, with which the "
                    "ramp ends; leave it out, or raise train.global_batch",
                    batch, (long long)global_batch);
    if (before && item->batch <= before->batch)
        return FAIL(env, CONFIG,
                    "train.batch_ramp: %lld follows %lld; sizes must grow from item to item", batch,
                    (long long)before->batch);
    if (before && item->tokens <= before->tokens)
        return FAIL(env, CONFIG,
                    "train.batch_ramp: %lld tokens follow %lld; tokens count from the start of the "
                    "run and must grow from item to item",
                    (long long)item->tokens, (long long)before->tokens);
    return STATUS_OK;
}

enum status batch_ramp_parse(struct options *options, struct env *env, const char *text,
                             int64_t micro_batch, struct batch_ramp *ramp)
{
    struct batch_ramp_item *items;
    size_t most = 1;
    ramp->count = 0;
    if (*text == '\0')
        return STATUS_OK;
    for (const char *c = text; *c; c++)
        most += *c == ',';
    TRY(options_keep_memory(options, most * sizeof *items, &items));
    for (const char *next = text; ramp->count < (int)most; ramp->count++) {
        next += strspn(next, " ");
        size_t bytes = strcspn(next, ",");
        struct batch_ramp_item *item = &items[ramp->count];
        TRY(read_item(env, next, bytes, item));
        TRY(check_item(env, item, ramp->count > 0 ? item - 1 : NULL, micro_batch, ramp->batch));
        next += bytes + 1;
    }
    ramp->items = items;
    return STATUS_OK;
}

/* --- looking up ----------------------------------------------------------------------------- */

int64_t batch_ramp_at(const struct batch_ramp *ramp, int64_t tokens)
{
    for (int i = 0; i < ramp->count; i++)
        if (tokens < ramp->items[i].tokens)
            return ramp->items[i].batch;
    return ramp->batch;
}

/* tokens + steps * step_tokens; INT64_MAX for a run that is too long to count. */
static int64_t add_steps(int64_t tokens, int64_t steps, int64_t step_tokens)
{
    int64_t more, sum;
    if (__builtin_mul_overflow(steps, step_tokens, &more) ||
        __builtin_add_overflow(tokens, more, &sum))
        return INT64_MAX;
    return sum;
}

int64_t batch_ramp_after(const struct batch_ramp *ramp, int64_t tokens, int64_t steps)
{
    for (int i = 0; i < ramp->count && steps > 0; i++) {
        const struct batch_ramp_item *item = &ramp->items[i];
        int64_t step_tokens = item->batch * ramp->context;
        int64_t left = tokens < item->tokens ? item->tokens - tokens : 0;
        int64_t here = left / step_tokens + (left % step_tokens > 0);
        here = here < steps ? here : steps;
        tokens = add_steps(tokens, here, step_tokens);
        steps -= here;
    }
    return steps > 0 ? add_steps(tokens, steps, ramp->batch * ramp->context) : tokens;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

int64_t batch_ramp_divisor(const struct batch_ramp *ramp)
{
    int64_t divisor = 0;
    for (int i = 0; i < ramp->count; i++)
        divisor = common_divisor(divisor, ramp->items[i].batch);
    return divisor;
}

void batch_ramp_describe(const struct batch_ramp *ramp, struct text *text)
{
    char human[32];
    for (int i = 0; i < ramp->count; i++) {
        const struct batch_ramp_item *item = &ramp->items[i];
        text_printf(text, "%s%lld%s until %s%s", i == 0 ? "" : ", ", (long long)item->batch,
                    i > 0             ? ""
                    : item->batch > 1 ? " sequences per step"
                                      : " sequence per step",
                    text_human_count(human, (double)item->tokens), i == 0 ? " tokens" : "");
    }
    text_printf(text, ", then %lld", (long long)ramp->batch);
}
