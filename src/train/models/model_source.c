#include "train/models/model_source.h"
#include <string.h>
#include "base/file.h"
#include "base/named.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/checkpoint/fallback.h"
#include "train/data/source.h"
#include "train/weights/hf_config.h"
#include "train/weights/model_file.h"

void model_source_close(struct model_source *source)
{
    if (source == NULL)
        return;
    struct env *env = source->env;
    checkpoint_close(source->checkpoint);
    mem_free(env, source->file);
    mem_free(env, source->folder);
    mem_free(env, source);
}

enum status model_source_path(const struct model_source *source, const char *name, char **path)
{
    return path_join(source->env, source->folder, name, path);
}

static enum status has(struct env *env, const char *folder, const char *name, bool *there)
{
    char *path;
    TRY(path_join(env, folder, name, &path));
    *there = file_exists(path);
    mem_free(env, path);
    return STATUS_OK;
}

/* --- one checkpoint ------------------------------------------------------------------------- */

/* True also without state.json: an incomplete checkpoint must not pass as a plain directory. */
static enum status is_checkpoint(struct env *env, const char *folder, bool *found)
{
    static const char *const signs[] = {"state.json", "COMPLETE", "optimizer"};
    *found = false;
    for (size_t i = 0; i < sizeof signs / sizeof *signs && !*found; i++)
        TRY(has(env, folder, signs[i], found));
    return STATUS_OK;
}

/* Choose the role of the weights. config.json is already verified. */
static enum status choose_role(struct env *env, const char *folder, const struct model_want *want,
                               const struct checkpoint *checkpoint, enum checkpoint_role *role)
{
    struct hf_config config;
    char *path;
    *role = CHECKPOINT_MODEL;
    if (want->type == NULL || !checkpoint_has(checkpoint, CHECKPOINT_MASTER))
        return STATUS_OK;
    TRY(path_join(env, folder, "config.json", &path));
    enum status st = hf_config_read(env, path, &config);
    mem_free(env, path);
    if (st == STATUS_OK && config.type != *want->type)
        *role = CHECKPOINT_MASTER;
    return st;
}

/* Open the checkpoint in this folder and verify the files that are wanted. */
static enum status open_checked(struct env *env, const char *folder, const struct model_want *want,
                                struct checkpoint **checkpoint, enum checkpoint_role *role)
{
    struct checkpoint *c;
    enum status st;
    TRY(checkpoint_open(env, folder, &c));
    *role = CHECKPOINT_MODEL;
    if (want->depth >= MODEL_DEPTH_SMALL) {
        TRY_OR(undo, checkpoint_verify_role(c, CHECKPOINT_PLAIN));
        TRY_OR(undo, choose_role(env, folder, want, c, role));
    }
    if (want->depth >= MODEL_DEPTH_ALL)
        TRY_OR(undo, checkpoint_verify_role(c, CHECKPOINT_MODEL));
    if (want->depth >= MODEL_DEPTH_ALL && *role != CHECKPOINT_MODEL)
        TRY_OR(undo, checkpoint_verify_role(c, *role));
    *checkpoint = c;
    return STATUS_OK;
undo:
    checkpoint_close(c);
    return st;
}

/* --- a run ---------------------------------------------------------------------------------- */

/* Is the checkpoint in this folder undamaged? If not, the reason is in the log of `quiet`. Other
 * failures, such as out of memory or a failed read, are not damage and are returned. */
static enum status try_one(struct env *env, struct env *quiet, const char *folder,
                           const struct model_want *want, bool *good)
{
    struct checkpoint *checkpoint = NULL;
    enum checkpoint_role role;
    log_error_clear(quiet->log);
    enum status st = open_checked(quiet, folder, want, &checkpoint, &role);
    checkpoint_close(checkpoint);
    *good = st == STATUS_OK;
    const char *why = log_first_error(quiet->log);
    if (st == STATUS_FORMAT)
        log_warn(env, "skipped the damaged checkpoint '%s': %s", folder, why);
    else if (st == STATUS_IO)
        return FAIL(env, IO, "%s; to use another checkpoint of the run, give its folder", why);
    else if (st != STATUS_OK)
        return log_fail(env->log, st, __FILE__, __LINE__, "%s", why);
    return STATUS_OK;
}

static enum status fail_none(struct env *env, const char *path, int64_t tried, const char *why)
{
    if (tried > 0)
        return FAIL(env, FORMAT, "no checkpoint of '%s' can be used, the last because of: %s", path,
                    why);
    return FAIL(env, CONFIG,
                "'%s' is not a model directory (config.json is missing) and not a run with a "
                "checkpoint",
                path);
}

/* *folder = the folder of the newest undamaged checkpoint; free it with mem_free. */
static enum status find_newest(struct env *env, struct env *quiet, const char *path,
                               const struct model_want *want, char **folder)
{
    char *checkpoints;
    int64_t step = INT64_MAX, tried = 0;
    bool good = false, apart = false;
    enum status st = path_join(env, path, "checkpoints", &checkpoints);
    if (st == STATUS_OK && !want->second && !file_exists(checkpoints))
        st = fail_none(env, path, 0, ""); /* `path` may be any folder or file */
    for (; st == STATUS_OK && !good; tried++) {
        TRY_OR(done,
               checkpoint_keep_newest_of(env, checkpoints, want->second, step, &step, &apart));
        if (step < 0) {
            st = fail_none(env, path, tried, log_first_error(quiet->log));
            break;
        }
        TRY_OR(done,
               checkpoint_keep_path(env, apart ? want->second : checkpoints, "", step, "", folder));
        st = try_one(env, quiet, *folder, want, &good);
        if (!good) {
            mem_free(env, *folder);
            *folder = NULL;
        }
    }
done:
    mem_free(env, checkpoints);
    return st;
}

static enum status open_run(struct model_source *source, const char *path,
                            const struct model_want *want)
{
    const struct model_want seen = {.depth = MODEL_DEPTH_STATE}; /* the rest is verified already */
    struct env quiet = *source->env;
    char *last;
    quiet.log = log_create(NULL, NULL, LOG_ERROR);
    if (quiet.log == NULL)
        return FAIL(source->env, MEMORY, "out of memory for a log");
    enum status st = find_newest(source->env, &quiet, path, want, &source->folder);
    log_destroy(quiet.log);
    TRY(st);
    /* If the disk was full at the end of a run, its last checkpoint is in the fallback folder, and
     * the run folder has only older ones. */
    TRY(fallback_newer(source->env, path, source->folder, &last));
    if (last)
        log_warn(source->env,
                 "'%s' is not the last checkpoint of the run: that is '%s' (checkpoint.fallback); "
                 "name it to use it",
                 source->folder, last);
    mem_free(source->env, last);
    TRY(open_checked(source->env, source->folder, &seen, &source->checkpoint, &source->role));
    return choose_role(source->env, source->folder, want, source->checkpoint, &source->role);
}

/* --- any path ------------------------------------------------------------------------------- */

static bool is_weights(const char *path)
{
    size_t bytes = strlen(path), suffix = strlen(".safetensors");
    return bytes > suffix && strcmp(path + bytes - suffix, ".safetensors") == 0;
}

/* Only this file is read as weights. Its folder has config.json, and may be a checkpoint. */
static enum status open_file(struct model_source *source, const char *path,
                             const struct model_want *want)
{
    const char *slash = strrchr(path, '/');
    struct checkpoint *checkpoint = NULL;
    bool found;
    TRY(mem_strdup(source->env, path, &source->file));
    TRY(mem_strdup(source->env, slash != NULL ? path : ".", &source->folder));
    if (slash != NULL)
        source->folder[slash > path ? slash - path : 1] = '\0';
    TRY(is_checkpoint(source->env, source->folder, &found));
    if (!found || want->depth == MODEL_DEPTH_STATE)
        return STATUS_OK;
    enum status st = open_checked(source->env, source->folder, want, &checkpoint, &source->role);
    checkpoint_close(checkpoint);
    return st;
}

/* What sifr cannot read is said before anything else about the model, such as its tokenizer. */
static enum status check_config(const struct model_source *source)
{
    struct model_config config = {.path = ""};
    return model_file_config(source->env, source->folder, &config);
}

static enum status open_folder(struct model_source *source, const char *path,
                               const struct model_want *want)
{
    bool checkpoint, plain;
    TRY(is_checkpoint(source->env, path, &checkpoint));
    TRY(has(source->env, path, "config.json", &plain));
    if (!checkpoint)
        TRY(model_file_check_folder(source->env, path));
    if (!checkpoint && !plain)
        return open_run(source, path, want);
    TRY(mem_strdup(source->env, path, &source->folder));
    if (!checkpoint)
        return want->depth >= MODEL_DEPTH_SMALL ? check_config(source) : STATUS_OK;
    return open_checked(source->env, path, want, &source->checkpoint, &source->role);
}

enum status model_source_open(struct env *env, const char *path, const struct model_want *want,
                              struct model_source **source)
{
    struct model_source *s;
    TRY(named_model(env, "", path));
    TRY(mem_alloc(env, MEM_OTHER, "model source", sizeof *s, &s));
    *s = (struct model_source){.env = env, .role = CHECKPOINT_MODEL};
    enum status st = is_weights(path) ? open_file(s, path, want) : open_folder(s, path, want);
    if (st == STATUS_OK)
        *source = s;
    else
        model_source_close(s);
    return st;
}

/* --- its tokenizer -------------------------------------------------------------------------- */

enum status model_tokenizer_compare(struct env *env, const struct model_source *source,
                                    int64_t model_vocab, const struct tokenizer *tokenizer,
                                    const char *name)
{
    struct env quiet = *env;
    struct tokenizer *own = NULL;
    int size = tokenizer_vocab(tokenizer);
    char *path;
    TRY(model_source_path(source, "tokenizer.json", &path));
    quiet.log = log_create(NULL, NULL, LOG_ERROR);
    /* The model's own may be missing or unreadable, which may be why the user gave another one. */
    if (quiet.log && file_exists(path) && tokenizer_load(&quiet, path, &own) != STATUS_OK)
        own = NULL;
    mem_free(env, path);
    if (!quiet.log)
        return FAIL(env, MEMORY, "out of memory for a log");
    if (own && source_tokenizer_fingerprint(own) != source_tokenizer_fingerprint(tokenizer))
        log_warn(env,
                 "the tokenizer '%s' (%d tokens) is not that of the model in '%s' (%d "
                 "tokens): its tokens mean something else to the model; leave it out to use "
                 "the model's own",
                 name, size, source->folder, tokenizer_vocab(own));
    else if (!own && size < model_vocab - model_vocab / 10) /* a vocabulary may be padded */
        log_warn(
            env,
            "the tokenizer '%s' has %d tokens and the model in '%s' %lld: it is hardly the one "
            "that the model was trained with",
            name, size, source->folder, (long long)model_vocab);
    tokenizer_destroy(own); /* it borrows `quiet` */
    log_destroy(quiet.log);
    return STATUS_OK;
}
