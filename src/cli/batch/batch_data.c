/* batch_data -- rungs can be compared only if all of them saw the same data. OUT/data.txt has the
 * digests of the files that the first rung began with:
 *
 *     training: 1 file, 40170 bytes, xxh3 94c1d8a26fd0a3b1 0000000000000000
 *     held-out: none
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "cli/batch/batch.h"
#include "train/data/data_digest.h"

enum { DATA_BYTES = 4096 };

static const struct {
    const char *word, *keys;
} kinds[DATA_PART_COUNT] = {
    [DATA_PART_TRAINING] = {"training", "data.path or data.mix"},
    [DATA_PART_HELD_OUT] = {"held-out", "data.val"},
};

/* Finished rungs need no data: it may be gone. If one is to be trained, train reports it. */
static bool is_there(const struct env *env, const struct data_config *data)
{
    struct env quiet = *env;
    quiet.log = log_create(NULL, NULL, LOG_ERROR);
    bool found = quiet.log && data_paths_check(&quiet, data) == STATUS_OK;
    log_destroy(quiet.log);
    return found;
}

static enum status print_digests(struct env *env, const struct data_config *data, struct text *text)
{
    for (int part = 0; part < DATA_PART_COUNT; part++) {
        struct data_digest d;
        TRY(data_digest_files(env, data, (enum data_part)part, &d));
        text_printf(text, "%s: ", kinds[part].word);
        if (d.files > 0)
            text_printf(
                text, "%" PRId64 " file%s, %" PRIu64 " bytes, xxh3 %016" PRIx64 " %016" PRIx64 "\n",
                d.files, d.files == 1 ? "" : "s", d.whole_bytes + d.sampled_bytes, d.hash, d.more);
        else
            text_add(text, "none\n");
    }
    return text->status;
}

/* What a line says after its first word. */
static const char *value_of(const char *line)
{
    line += strcspn(line, ":\n");
    return line + strspn(line, ": ");
}

static int line_bytes(const char *line)
{
    return (int)strcspn(line, "\n");
}

/* The lines have the same order in both texts. */
static enum status compare(struct env *env, const struct batch *batch,
                           const struct batch_rung *trained, const char *there, const char *here)
{
    char advice[64] = "";
    if (trained)
        snprintf(advice, sizeof advice, " and move the folder B%" PRId64 " away", trained->batch);
    for (int part = 0; part < DATA_PART_COUNT; part++) {
        int then = line_bytes(there), now = line_bytes(here);
        const char *was = value_of(there), *is = value_of(here);
        if (then != now || strncmp(there, here, (size_t)now) != 0)
            return FAIL(env, CONFIG,
                        "the %s data (%s) has changed since the first rung in '%s' began, so their "
                        "losses cannot be compared (then: %.*s; now: %.*s); restore the files%s, "
                        "or choose another --out",
                        kinds[part].word, kinds[part].keys, batch->out, line_bytes(was), was,
                        line_bytes(is), is, advice);
        there += then + (there[then] == '\n');
        here += now + (here[now] == '\n');
    }
    return STATUS_OK;
}

static enum status check(struct env *env, const struct batch *batch, const struct data_config *data,
                         const struct batch_rung *trained, const char *path)
{
    struct text here;
    char *there;
    size_t bytes;
    text_init(&here, env);
    enum status st = print_digests(env, data, &here);
    if (st == STATUS_OK && !file_exists(path)) {
        st = file_write_text(env, path, &here);
    } else if (st == STATUS_OK &&
               (st = file_read(env, path, DATA_BYTES, &there, &bytes)) == STATUS_OK) {
        st = compare(env, batch, trained, there, text_string(&here));
        mem_free(env, there);
    }
    text_free(&here);
    return st;
}

enum status batch_data_check(struct cli *cli, const struct batch *batch,
                             const struct data_config *data, const struct batch_rung *trained)
{
    char *path;
    if (!is_there(cli->env, data))
        return STATUS_OK;
    TRY(path_join(cli->env, batch->out, "data.txt", &path));
    enum status st = check(cli->env, batch, data, trained, path);
    mem_free(cli->env, path);
    return st;
}
