/* encode.c -- encodes long text in chunks of about 1 MiB.
 *
 * A chunk ends between a letter and a newline, because the usual pre-tokenizer patterns never join
 * the two. A few examples are encoded first to test whether this holds for the given tokenizer. If
 * it does not, for example because a prefix space is added, or if BPE is over characters, which is
 * often not split at all, every document is encoded at once.
 */
#include "train/data/encode.h"
#include "base/progress.h"
#include <string.h>
#include "base/clock.h"
#include "train/data/jsonl.h"
#include "train/data/shard.h"
#include "train/data/text_files.h"

enum { CHUNK_BYTES = 1 << 20, PARTS = 2 };

struct encoding {
    const struct encode_job *job;
    struct encode_result *result;
    struct encoder *encoder;
    struct token_list tokens; /* scratch */
    struct shard_writer *writers[PARTS];
    bool cut_allowed;
    struct progress_task task;    /* bytes of text */
    size_t total_bytes;           /* of text in all files */
    const struct text_file *file; /* the JSONL file that is being read */
};

/* --- may text be cut between a letter and a newline? ---------------------------------------- */

static enum status encode_joined(struct encoding *e, const char *text, size_t cut, bool apart)
{
    e->tokens.count = 0;
    TRY(tokenizer_encode(e->encoder, text, apart ? cut : strlen(text), e->job->special,
                         &e->tokens));
    return apart ? tokenizer_encode(e->encoder, text + cut, strlen(text) - cut, e->job->special,
                                    &e->tokens)
                 : STATUS_OK;
}

static enum status try_cuts(struct encoding *e)
{
    static const char *const examples[] = {"Ab\ncd", "it's so\n\n  x", "word\n. y",
                                           "naive\n\tx = 1\n", "a\n"};
    struct token_list whole = {0};
    enum status st = STATUS_OK;
    e->cut_allowed = tokenizer_is_byte_level(e->job->tokenizer);
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        TRY_OR(done, encode_joined(e, examples[i], 0, false));
        struct token_list swap = whole;
        whole = e->tokens;
        e->tokens = swap;
        TRY_OR(done, encode_joined(e, examples[i], strcspn(examples[i], "\n"), true));
        e->cut_allowed &=
            whole.count == e->tokens.count &&
            memcmp(whole.ids, e->tokens.ids, (size_t)whole.count * sizeof *whole.ids) == 0;
    }
done:
    token_list_free(e->job->env, &whole);
    return st;
}

static size_t span_end(const struct encoding *e, const char *text, size_t begin, size_t bytes)
{
    if (!e->cut_allowed || bytes - begin <= CHUNK_BYTES)
        return bytes;
    for (size_t i = begin + CHUNK_BYTES; i < bytes; i++) {
        if (text[i] == '\n' && text[i - 1] >= 'a' && text[i - 1] <= 'z')
            return i;
    }
    return bytes;
}

/* --- writing -------------------------------------------------------------------------------- */

static enum status add_special(struct encoding *e, int part, int32_t id)
{
    return id < 0 ? STATUS_OK : shard_writer_add(e->writers[part], &id, 1);
}

static enum status add_end(struct encoding *e, int part)
{
    return add_special(e, part, tokenizer_eot(e->job->tokenizer));
}

static enum status add_text(struct encoding *e, int part, const char *text, size_t bytes, bool ends)
{
    const struct encode_job *job = e->job;
    int32_t begin_id = tokenizer_special(job->tokenizer)->begin;
    if (bytes == 0)
        return STATUS_OK;
    if (!e->writers[part]) { /* a shard is created when its first text arrives */
        TRY(shard_writer_create(job->env, job->path[part], tokenizer_vocab(job->tokenizer),
                                source_tokenizer_fingerprint(job->tokenizer), &e->writers[part]));
        if (begin_id < 0)
            TRY(add_end(e, part));
    }
    TRY(add_special(e, part, begin_id));
    for (size_t begin = 0, end; begin < bytes; begin = end) {
        end = span_end(e, text, begin, bytes);
        e->tokens.count = 0;
        TRY(tokenizer_encode(e->encoder, text + begin, end - begin, job->special, &e->tokens));
        TRY(shard_writer_add(e->writers[part], e->tokens.ids, e->tokens.count));
        e->result->bytes[part] += end - begin;
        progress_advance(job->env, &e->task, end - begin);
    }
    return ends ? add_end(e, part) : STATUS_OK;
}

static enum status add_document(void *user, const struct jsonl_document *document)
{
    struct encoding *e = user;
    if (document->prompt)
        return FAIL(e->job->env, FORMAT,
                    "%s:%lld has a prompt and a completion, and a token shard cannot say which "
                    "tokens are the "
                    "prompt's; train on the JSONL file itself: --data.path=%s",
                    e->file->path, (long long)document->line, e->file->path);
    return add_text(e, document->offset >= e->file->cut, document->text, document->text_bytes,
                    true);
}

static enum status add_file(struct encoding *e, const struct text_file *file, bool jsonl)
{
    const char *text = (const char *)file->map.data;
    size_t rest = file->map.bytes - file->cut;
    e->file = file;
    if (jsonl)
        return jsonl_parse(e->job->env, text, file->map.bytes, file->path, add_document, e);
    TRY(add_text(e, 0, text, file->cut, rest == 0));
    TRY(add_text(e, 1, text + file->cut, rest, true));
    return file_map_check(e->job->env, file->path, text);
}

/* --- all files ------------------------------------------------------------------------------ */

/* With `count_only`, only count the bytes and log warnings about the files. */
static enum status encode_pattern(struct encoding *e, const char *pattern, bool count_only)
{
    const struct encode_job *job = e->job;
    struct text_files files;
    enum data_format format;
    enum status st = STATUS_OK;
    TRY(source_detect(job->env, pattern, job->format, &format));
    if (format != DATA_TEXT && format != DATA_JSONL)
        return FAIL(job->env, USAGE,
                    "'%s' holds tokens already; `sifr tokenize --decode` prints their text",
                    pattern);
    TRY(text_files_open(job->env, pattern, job->split, format == DATA_JSONL, &files));
    if (count_only) {
        e->total_bytes += files.bytes;
        text_files_tell_binary(job->env, &files);
    }
    for (int i = 0; !count_only && i < files.count && st == STATUS_OK; i++)
        st = add_file(e, &files.files[i], format == DATA_JSONL);
    text_files_close(job->env, &files);
    return st;
}

static enum status encode_all(struct encoding *e)
{
    for (int i = 0; i < e->job->pattern_count; i++)
        TRY(encode_pattern(e, e->job->patterns[i], true));
    TRY(try_cuts(e));
    progress_begin(&e->task, "encoding", NULL, e->total_bytes);
    for (int i = 0; i < e->job->pattern_count; i++)
        TRY(encode_pattern(e, e->job->patterns[i], false));
    if (!e->writers[0] && !e->writers[1])
        return FAIL(e->job->env, FORMAT, "no text in '%s'%s", e->job->patterns[0],
                    e->job->pattern_count > 1 ? " and the other files" : "");
    for (int part = 0; part < PARTS; part++) {
        if (!e->writers[part])
            continue;
        TRY(shard_writer_finish(e->writers[part]));
        e->result->tokens[part] = shard_writer_count(e->writers[part]);
    }
    return STATUS_OK;
}

enum status encode_files(const struct encode_job *job, struct encode_result *result)
{
    struct encoding e = {.job = job, .result = result};
    double begin = clock_seconds();
    *result = (struct encode_result){0};
    TRY(encoder_create(job->env, job->tokenizer, &e.encoder));
    enum status st = encode_all(&e);
    progress_end(job->env, &e.task);
    for (int part = 0; part < PARTS; part++)
        shard_writer_destroy(e.writers[part]);
    token_list_free(job->env, &e.tokens);
    encoder_destroy(e.encoder);
    result->seconds = clock_seconds() - begin;
    return st;
}
