/* data_tokenizer.c -- loads the tokenizer that data.tokenizer names, or trains one on the training
 * text.
 *
 * Training cuts the files as the sources will (text_files.h), so it never sees held-out text.
 */
#include "train/data/dataset.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/progress.h"
#include "train/data/jsonl.h"
#include "train/data/text_files.h"

#define STRIPE_BYTES ((size_t)1 << 20) /* of consecutive text, where the text is sampled */
#define ADD_BYTES    ((size_t)1 << 20) /* of text between two reports of progress */

/* Text beyond data.max_text adds little to a vocabulary. If there is more, only evenly spaced
 * stripes are read, the same ones in every run. */
struct gathering {
    struct env *env;                   /* borrowed */
    struct progress_task task;         /* bytes of text */
    struct tokenizer_learner *learner; /* NULL = only count bytes */
    size_t limit;                      /* 0 = none */
    size_t total, read;                /* bytes of training text in all files, bytes read so far */
    size_t base;                       /* bytes of training text in the files before this one */
    size_t cut;                        /* of the file that is being read */
    int64_t documents;                 /* read so far */
};

/* --- choosing the text ---------------------------------------------------------------------- */

static bool is_sampled(const struct gathering *g)
{
    return g->limit > 0 && g->total > g->limit;
}

/* Bytes from the start of a stripe to the start of the next. */
static double stripe_period(const struct gathering *g)
{
    return (double)STRIPE_BYTES * (double)g->total / (double)g->limit;
}

static enum status gather(struct gathering *g, const void *data, size_t bytes)
{
    const char *text = data;
    g->read += bytes;
    g->documents++;
    for (size_t done = 0, count; done < bytes; done += count) {
        count = bytes - done < ADD_BYTES ? bytes - done : ADD_BYTES;
        TRY(tokenizer_learner_add(g->learner, text + done, count));
        progress_advance(g->env, &g->task, count);
    }
    return tokenizer_learner_add(g->learner, "\n", 1); /* keep documents apart */
}

/* The start of the first line in [from, end). If no line starts there, the start of the first
 * character at or after `from`. */
static size_t line_after(const uint8_t *text, size_t from, size_t end)
{
    const uint8_t *newline = from > 0 ? memchr(text + from - 1, '\n', end - from) : text;
    if (from == 0 || newline)
        return from == 0 ? 0 : (size_t)(newline - text) + 1;
    while (from < end && (text[from] & 0xc0) == 0x80)
        from++;
    return from;
}

static enum status gather_stripes(struct gathering *g, const uint8_t *text, size_t bytes)
{
    double period = stripe_period(g);
    for (int64_t k = (int64_t)((double)g->base / period);; k++) {
        double first = (double)k * period - (double)g->base;
        double last = first + (double)STRIPE_BYTES;
        if (first >= (double)bytes)
            return STATUS_OK;
        size_t begin = first < 0 ? 0 : (size_t)first;
        size_t end = last > (double)bytes ? bytes : last < 0 ? 0 : (size_t)last;
        if (begin >= end)
            continue;
        begin = line_after(text, begin, end);
        if (end < bytes) /* extend the stripe to the end of its last line */
            end = line_after(text, end, end + STRIPE_BYTES < bytes ? end + STRIPE_BYTES : bytes);
        if (begin < end)
            TRY(gather(g, text + begin, end - begin));
    }
}

static enum status gather_document(void *user, const struct jsonl_document *document)
{
    struct gathering *g = user;
    if (document->offset >= g->cut)
        return STATUS_OK;
    if (is_sampled(g) &&
        fmod((double)(g->base + document->offset), stripe_period(g)) >= (double)STRIPE_BYTES)
        return STATUS_OK;
    if (document->prompt)
        TRY(gather(g, document->prompt, document->prompt_bytes));
    return gather(g, document->text, document->text_bytes);
}

static enum status gather_file(struct env *env, const struct text_file *file, bool jsonl,
                               struct gathering *g)
{
    g->cut = file->cut;
    if (jsonl)
        return jsonl_parse(env, (const char *)file->map.data, file->map.bytes, file->path,
                           gather_document, g);
    if (file->cut == 0)
        return STATUS_OK;
    return is_sampled(g) ? gather_stripes(g, file->map.data, file->cut)
                         : gather(g, file->map.data, file->cut);
}

static enum status gather_files(struct env *env, const struct text_files *files, bool jsonl,
                                struct gathering *g)
{
    for (int i = 0; i < files->count; i++) {
        const struct text_file *file = &files->files[i];
        if (g->learner)
            TRY(gather_file(env, file, jsonl, g));
        else
            g->total += file->cut;
        g->base += file->cut;
        TRY(file_map_check(env, file->path, file->map.data));
    }
    return STATUS_OK;
}

static enum status gather_sources(struct env *env, const struct data_config *config,
                                  struct gathering *g)
{
    struct data_plan plan;
    TRY(data_plan_make(env, config, &plan));
    g->base = 0;
    for (int i = 0; i < plan.count; i++) {
        struct data_mix_item item = data_plan_item(config, i);
        struct text_files files;
        enum data_format format;
        TRY(source_detect(env, item.path, (enum data_format)item.format, &format));
        if (format != DATA_TEXT && format != DATA_JSONL)
            return FAIL(env, CONFIG, "a vocabulary is trained from text, but '%s' holds tokens",
                        item.path);
        TRY(text_files_open(env, item.path, plan.split, format == DATA_JSONL, &files));
        enum status st = gather_files(env, &files, format == DATA_JSONL, g);
        text_files_close(env, &files);
        TRY(st);
    }
    return STATUS_OK;
}

/* --- training ------------------------------------------------------------------------------- */

bool data_tokenizer_is_learnt(const struct data_config *config)
{
    return strncmp(config->tokenizer, "train:", strlen("train:")) == 0;
}

enum status data_tokenizer_size(struct env *env, const struct data_config *config, int64_t *vocab)
{
    const char *size = config->tokenizer + strlen("train:");
    char *end;
    *vocab = strtol(size, &end, 10);
    if (end == size || *end || *vocab < DATA_LEARNT_MIN || *vocab > DATA_LEARNT_MAX)
        return FAIL(env, CONFIG,
                    "data.tokenizer 'train:%s': the size must be a number from %d to %d", size,
                    DATA_LEARNT_MIN, DATA_LEARNT_MAX);
    return STATUS_OK;
}

static void tell_sampling(struct env *env, const struct gathering *g)
{
    struct tokenizer_dropped dropped = tokenizer_learner_dropped(g->learner);
    char a[32], b[32];
    if (is_sampled(g))
        log_info(env,
                 "the vocabulary is trained from %s of %s of text, evenly spread; data.max_text "
                 "(sifr tokenize: --max-text) sets how much is read",
                 text_human_bytes(a, (double)g->read), text_human_bytes(b, (double)g->total));
    if (dropped.words > 0)
        log_info(env,
                 "the text has more different words than are counted at a time: %s that had been "
                 "seen %lld times or less were dropped",
                 text_human_count(a, (double)dropped.words), (long long)dropped.most);
}

/* All ranks train the same tokenizer; the one with `progress` logs how. */
static enum status train(struct env *env, const struct data_config *config,
                         tokenizer_progress_fn *progress, void *user, struct tokenizer **tokenizer)
{
    struct gathering g = {.env = env, .limit = (size_t)config->max_text};
    int64_t vocab;
    enum status st;
    TRY(data_tokenizer_size(env, config, &vocab));
    TRY(gather_sources(env, config, &g));
    TRY(tokenizer_learner_create(env, (int)vocab, NULL, progress, user, &g.learner));
    progress_begin(&g.task, "reading the text", NULL, is_sampled(&g) ? g.limit : g.total);
    st = gather_sources(env, config, &g);
    progress_end(env, &g.task);
    TRY_OR(done, st);
    if (g.documents == 0) {
        st = FAIL(env, CONFIG, "no training text to train a vocabulary from");
        goto done;
    }
    if (progress)
        tell_sampling(env, &g);
    st = tokenizer_learner_finish(g.learner, tokenizer);
done:
    if (st == STATUS_MEMORY)
        log_warn(env, "training a vocabulary takes less memory with less text: lower data.max_text "
                      "(sifr tokenize: --max-text), or name a tokenizer.json");
    tokenizer_learner_destroy(g.learner);
    return st;
}

enum status data_tokenizer_create(struct env *env, const struct data_config *config,
                                  tokenizer_progress_fn *progress, void *user,
                                  struct tokenizer **tokenizer)
{
    if (!*config->tokenizer) {
        *tokenizer = NULL;
        return STATUS_OK;
    }
    if (data_tokenizer_is_learnt(config))
        return train(env, config, progress, user, tokenizer);
    return tokenizer_load(env, config->tokenizer, tokenizer);
}

static enum status path_has_text(struct env *env, const char *path, int format, bool *has_text)
{
    enum data_format found;
    TRY(source_detect(env, path, (enum data_format)format, &found));
    *has_text |= found == DATA_TEXT || found == DATA_JSONL;
    return STATUS_OK;
}

bool data_is_given(const struct data_config *config)
{
    return *config->path || config->mix.count > 0;
}

enum status data_has_text(struct env *env, const struct data_config *config, bool *has_text)
{
    struct data_plan plan;
    *has_text = false;
    TRY(data_plan_make(env, config, &plan));
    for (int i = 0; i < plan.count; i++) {
        struct data_mix_item item = data_plan_item(config, i);
        TRY(path_has_text(env, item.path, item.format, has_text));
    }
    return plan.val ? path_has_text(env, plan.val, config->format, has_text) : STATUS_OK;
}
