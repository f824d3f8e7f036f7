/* resume -- picks, reads and compares checkpoints until one is good on every rank. */
#include "train/checkpoint/resume.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/checkpoint/config_lines.h"

struct resume {
    struct env *env;
    struct env quiet; /* a copy with its own log: a damaged checkpoint is not an error of the run */
    const struct resume_source *source;
    struct comm *comm;
    const struct unit_graph *graph;
    struct zero *zero;
    int rank, size;
    size_t held_bytes;                       /* in the memory account, before anything was read */
    size_t resident_bytes;                   /* of the process, before anything was read */
    bool apart;                              /* the current checkpoint is in the second folder */
    bool branching;                          /* the current checkpoint is of another run */
    int64_t tried;                           /* number of damaged checkpoints so far */
    struct checkpoint_conversion conversion; /* of the optimizers' state; on rank 0 */
    enum status verdict; /* of all ranks on the current one: OK, FORMAT = damaged, else stop */
    char why[512];       /* why the verdict is not OK */
};

struct vote {
    int64_t step, status;
    int64_t apart;          /* the checkpoint is in the second folder */
    uint64_t memory, grown; /* as in resume_load */
    char error[480];
};

/* --- what has changed ----------------------------------------------------------------------- */

/* On rank 0: refuse a checkpoint of a model of another shape. */
static enum status refuse_shapes(struct resume *r, const struct checkpoint_state *state)
{
    enum status st = STATUS_OK;
    struct text text;
    text_init(&text, r->env);
    config_changes(state->config, r->source->config_yaml, CONFIG_SHAPES, &text);
    if (text.bytes > 0 && r->branching)
        st = FAIL(r->env, CONFIG,
                  "train.branch: the run of '%s' has another model (%s); set the same model keys",
                  r->source->branch, text_string(&text));
    else if (text.bytes > 0)
        st = FAIL(r->env, CONFIG,
                  "the run in this folder has another model (%s); set the same model keys, choose "
                  "another --out, or give --fresh",
                  text_string(&text));
    text_free(&text);
    return st;
}

/* On rank 0: refuse a checkpoint that cannot be continued. */
static enum status refuse(struct resume *r, const struct checkpoint_state *state)
{
    TRY(refuse_shapes(r, state));
    return checkpoint_optimizers_compare(r->env, &state->optimizers, r->graph, r->zero,
                                         &r->conversion);
}

struct comparison {
    enum data_verdict files;
    bool same;            /* the files and the sampled tokens match */
    struct text in_words; /* what was compared */
};

/* The same files give different tokens with another tokenizer.json, so both are compared. */
static void compare_data(struct resume *r, const struct checkpoint_state *state,
                         struct comparison *comparison)
{
    struct text *words = &comparison->in_words;
    bool same_tokens = state->data == r->source->data;
    text_init(words, r->env);
    comparison->files = data_digest_compare(&state->files, &r->source->files, words);
    if (comparison->files == DATA_UNKNOWN)
        text_add(words, "the number of tokens and up to 2048 windows of them");
    if (comparison->files == DATA_SAME && !same_tokens)
        text_add(words, ", which match, and up to 2048 windows of tokens, which differ");
    comparison->same = comparison->files != DATA_DIFFERS && same_tokens;
}

/* Do the reported changes already explain why the data differs? Another seed draws other samples;
 * other files have other names. Then the data needs no warning of its own. */
static bool is_explained(const struct comparison *comparison, const char *changes)
{
    if (comparison->files != DATA_DIFFERS)
        return strstr(changes, "train.seed:") || strstr(changes, "train.context:") ||
               strstr(changes, "data.");
    return strstr(changes, "data.path:") || strstr(changes, "data.val:") ||
           strstr(changes, "data.mix:");
}

static void tell_data(struct resume *r, const struct checkpoint_state *state, const char *changes,
                      const struct comparison *comparison)
{
    const char *compared = text_string(&comparison->in_words);
    struct text names;
    text_init(&names, r->env);
    if (comparison->same)
        config_changes(state->config, r->source->config_yaml, CONFIG_DATA, &names);
    if (names.bytes > 0)
        log_info(r->env, "the data matches the checkpoint (compared: %s) under other names: %s",
                 compared, text_string(&names));
    else if (comparison->same)
        log_info(r->env, "the data matches the checkpoint (compared: %s)", compared);
    else if (!is_explained(comparison, changes))
        log_warn(r->env,
                 "the data does not match the checkpoint (compared: %s): the run will differ from "
                 "an uninterrupted one",
                 compared);
    text_free(&names);
}

/* `changes`: of the configuration. */
static void tell_conversion(struct resume *r, const struct checkpoint_state *state,
                            const char *changes)
{
    const struct checkpoint_conversion *c = &r->conversion;
    if (c->to_codes > 0)
        log_info(r->env,
                 "the adamw state of %" PRId64 " tensor%s was rounded to 8 bits for adamw8bit",
                 c->to_codes, c->to_codes == 1 ? "" : "s");
    if (c->from_codes > 0)
        log_info(r->env,
                 "the adamw8bit state of %" PRId64 " tensor%s was widened to fp32 for adamw",
                 c->from_codes, c->from_codes == 1 ? "" : "s");
    if (c->codes > 0 && strstr(changes, "parallel.tp:"))
        log_info(r->env, "8-bit moments are encoded again, because parallel.tp changed");
    if (state->arithmetic < OPS_ARITHMETIC && strcmp(r->source->print->device, "cpu") == 0)
        log_info(r->env, "this checkpoint was written by a version whose CPU arithmetic differed "
                         "in the last bits; the run continues, but not with the bits it would "
                         "have had");
}

static void tell_changes(struct resume *r, const struct checkpoint_state *state)
{
    const char *here = r->source->config_yaml;
    enum log_level level = r->branching ? LOG_INFO : LOG_WARN; /* a branch is made to differ */
    struct comparison comparison;
    struct text text;
    text_init(&text, r->env);
    compare_data(r, state, &comparison);
    if (!comparison.same)
        config_changes(state->config, here, CONFIG_DATA, &text);
    config_changes(state->config, here, CONFIG_BITS, &text);
    if (text.bytes > 0)
        log_write(r->env->log, level, "%s: %s",
                  r->branching ? "the branch differs from the run that it starts from"
                               : "the configuration has changed, so the run will differ from an "
                                 "uninterrupted one",
                  text_string(&text));
    tell_data(r, state, text_string(&text), &comparison);
    tell_conversion(r, state, text_string(&text));
    if (r->source->by_workers && state->workers > 0 && state->workers != r->source->workers)
        log_warn(r->env,
                 "gradients are summed by worker (zero.accumulate: local or precision.accumulate: "
                 "bf16), so the run will differ from an uninterrupted one: %" PRId64 " -> %" PRId64
                 " workers",
                 state->workers, r->source->workers);
    text_clear(&text);
    fingerprint_compare(&state->print, r->source->print, &text);
    if (text.bytes > 0)
        log_write(r->env->log, level, "the bits of the run may differ from now on: %s",
                  text_string(&text));
    text_free(&comparison.in_words);
    text_free(&text);
}

/* --- one checkpoint ------------------------------------------------------------------------- */

/* Broadcast what rank 0 found. */
static enum status tell_step(struct resume *r, int64_t *step, struct vote *votes)
{
    struct vote mine = {.step = *step, .apart = r->apart};
    if (!r->comm)
        return STATUS_OK;
    TRY(comm_exchange(r->comm, &mine, sizeof mine, votes));
    *step = votes[0].step;
    r->apart = votes[0].apart != 0;
    return STATUS_OK;
}

/* *step = the next checkpoint to try, the newest below `below` in either folder; -1 = there is none
 * at all. If both folders have the same step, the run's own is tried first, and the other one after
 * it. */
static enum status pick(struct resume *r, int64_t below, int64_t *step, struct vote *votes)
{
    *step = -1;
    if (r->rank == 0 && r->source->wanted)
        TRY(checkpoint_keep_newest_of(r->env, r->source->folder, r->source->second, below, step,
                                      &r->apart));
    if (r->rank == 0 && *step < 0 && r->tried > 0)
        return FAIL(r->env, FORMAT,
                    "no usable checkpoint in '%s', last error: %s; give --fresh to move this run "
                    "aside and start again",
                    r->source->folder, r->why);
    return tell_step(r, step, votes);
}

/* Damage on one rank counts for all ranks. A rank that could not read (disk error, out of memory)
 * overrules it: then nothing can be concluded about the checkpoint. */
static int severity(int64_t status)
{
    return status == STATUS_OK ? 0 : status == STATUS_FORMAT ? 1 : 2;
}

/* All ranks resume from the checkpoint, or none does: r->verdict is the same on every rank. */
static enum status agree(struct resume *r, enum status st, struct vote *votes,
                         struct resume_load *load)
{
    size_t resident = resident_bytes();
    struct vote mine = {.status = st,
                        .memory = mem_total_peak(r->env->mem) - r->held_bytes,
                        .grown = resident > r->resident_bytes ? resident - r->resident_bytes : 0};
    snprintf(mine.error, sizeof mine.error, "%s", log_first_error(r->quiet.log));
    if (r->comm)
        TRY(comm_exchange(r->comm, &mine, sizeof mine, votes));
    else
        votes[0] = mine;
    r->verdict = STATUS_OK;
    for (int i = 0; i < r->size; i++) {
        if (votes[i].memory > load->memory_bytes)
            load->memory_bytes = votes[i].memory;
        if (votes[i].grown > load->grown_bytes)
            load->grown_bytes = votes[i].grown;
        if (severity(votes[i].status) <= severity((int64_t)r->verdict))
            continue;
        r->verdict = (enum status)votes[i].status;
        snprintf(r->why, sizeof r->why, "%s", *votes[i].error ? votes[i].error : "unknown");
    }
    return STATUS_OK;
}

/* The checkpoint could not be read but may be good: change nothing and let the user decide. */
static enum status stop(struct resume *r, const char *path, int64_t step, struct vote *votes)
{
    int64_t before = -1;
    if (r->rank == 0) /* on failure, report no earlier checkpoint */
        (void)checkpoint_keep_newest(&r->quiet, r->source->folder, step, &before);
    TRY(tell_step(r, &before, votes));
    if (r->verdict != STATUS_IO)
        return log_fail(r->env->log, r->verdict, __FILE__, __LINE__, "%s", r->why);
    if (before < 0)
        return FAIL(
            r->env, IO,
            "%s; nothing was changed and there is no earlier checkpoint: rerun the same command "
            "when the file can be read, or give --fresh to start again",
            r->why);
    return FAIL(
        r->env, IO,
        "%s; nothing was changed: rerun the same command when the file can be read, or resume "
        "from step %" PRId64 " by renaming this checkpoint first: mv '%s' '%s.unreadable'",
        r->why, before, path, path);
}

/* Read this rank's part of the checkpoint. If there are masters, the ranks need the 16-bit weights
 * of frozen tensors only: the model files are divided among the ranks and verified. */
static enum status read_part(struct resume *r, struct checkpoint *checkpoint)
{
    if (r->rank == 0)
        TRY(checkpoint_verify_role(checkpoint, CHECKPOINT_PLAIN));
    TRY(checkpoint_load(checkpoint, r->graph, r->source->direct, r->zero));
    if (!checkpoint_has(checkpoint, CHECKPOINT_MASTER))
        return STATUS_OK;
    return checkpoint_verify_part(checkpoint, CHECKPOINT_MODEL, r->rank, r->size);
}

/* Sets r->verdict. */
static enum status try_one(struct resume *r, const char *path, struct vote *votes,
                           struct checkpoint_progress *progress, struct resume_load *load)
{
    struct checkpoint *checkpoint = NULL;
    log_error_clear(r->quiet.log);
    enum status st = checkpoint_open(&r->quiet, path, &checkpoint), refused = STATUS_OK;
    if (st == STATUS_OK && r->rank == 0)
        refused = refuse(r, checkpoint_state(checkpoint));
    if (refused == STATUS_OK && st == STATUS_OK)
        st = read_part(r, checkpoint);
    if (refused == STATUS_OK)
        refused = agree(r, st, votes, load);
    if (refused == STATUS_OK && r->verdict == STATUS_OK)
        refused = zero_publish(r->zero, checkpoint_state(checkpoint)->progress.updates);
    if (refused == STATUS_OK && r->verdict == STATUS_OK) {
        *progress = checkpoint_state(checkpoint)->progress;
        if (r->rank == 0 && progress->step < r->source->steps)
            tell_changes(r, checkpoint_state(checkpoint));
    }
    checkpoint_close(checkpoint);
    return refused;
}

/* --- all checkpoints ------------------------------------------------------------------------ */

/* Start from a checkpoint of another run. It was named, so damage is an error. */
static enum status try_branch(struct resume *r, double started, struct vote *votes,
                              struct checkpoint_progress *progress, struct resume_load *load)
{
    const char *path = r->source->branch;
    char seconds[32];
    if (r->rank == 0 && !file_exists(path))
        return FAIL(r->env, CONFIG,
                    "train.branch: there is no '%s'; name a checkpoint (RUN/checkpoints/step-N) or "
                    "the folder of a run that has one",
                    path);
    r->branching = true;
    TRY(try_one(r, path, votes, progress, load));
    load->seconds = clock_seconds() - started;
    if (r->verdict != STATUS_OK)
        return log_fail(r->env->log, r->verdict, __FILE__, __LINE__,
                        "train.branch: '%s' cannot be used: %s", path, r->why);
    if (progress->step >= r->source->steps)
        return FAIL(r->env, CONFIG,
                    "train.branch: '%s' is of step %" PRId64 " and train.steps is %" PRId64
                    "; a branch continues the count, so set train.steps above %" PRId64,
                    path, progress->step, r->source->steps, progress->step);
    if (r->rank == 0)
        log_info(r->env, "branching after step %" PRId64 " from '%s', read in %s", progress->step,
                 path, text_human_seconds(seconds, load->seconds));
    load->branched = true;
    return STATUS_OK;
}

static enum status try_all(struct resume *r, struct vote *votes,
                           struct checkpoint_progress *progress, struct resume_load *load,
                           bool *found)
{
    double started = clock_seconds();
    int64_t step = INT64_MAX;
    char *path, seconds[32];
    for (*found = false; !*found; r->tried++) {
        TRY(pick(r, step, &step, votes));
        if (step < 0) {
            *found = r->source->branch && *r->source->branch;
            return *found ? try_branch(r, started, votes, progress, load) : STATUS_OK;
        }
        TRY(checkpoint_keep_path(r->env, r->apart ? r->source->second : r->source->folder, "", step,
                                 "", &path));
        enum status st = try_one(r, path, votes, progress, load);
        load->seconds = clock_seconds() - started;
        if (st == STATUS_OK && r->verdict != STATUS_OK && r->verdict != STATUS_FORMAT)
            st = stop(r, path, step, votes);
        if (st == STATUS_OK && r->verdict == STATUS_FORMAT && r->rank == 0)
            log_warn(r->env, "skipped the damaged checkpoint '%s': %s", path, r->why);
        else if (st == STATUS_OK && r->rank == 0 && progress->step < r->source->steps)
            log_info(r->env, "resuming after step %" PRId64 " from '%s', read in %s",
                     progress->step, path, text_human_seconds(seconds, load->seconds));
        mem_free(r->env, path);
        TRY(st);
        *found = r->verdict == STATUS_OK;
        load->in_fallback = *found && r->apart;
    }
    return STATUS_OK;
}

enum status resume_run(struct env *env, const struct resume_source *source, struct comm *comm,
                       const struct unit_graph *graph, struct zero *zero,
                       struct checkpoint_progress *progress, struct resume_load *load, bool *found)
{
    struct resume r = {.env = env,
                       .quiet = *env,
                       .source = source,
                       .comm = comm,
                       .graph = graph,
                       .zero = zero,
                       .held_bytes = mem_total(env->mem),
                       .resident_bytes = resident_bytes(),
                       .rank = comm ? comm_rank(comm) : 0,
                       .size = comm ? comm_size(comm) : 1};
    struct vote *votes;
    *load = (struct resume_load){0};
    TRY(mem_alloc_array(env, MEM_OTHER, "votes", (size_t)r.size, sizeof *votes, &votes));
    r.quiet.log = log_create(NULL, NULL, LOG_ERROR);
    if (comm)
        comm_set_patient(comm, true); /* some ranks read more, or from a slower disk */
    enum status st = r.quiet.log ? try_all(&r, votes, progress, load, found)
                                 : FAIL(env, MEMORY, "out of memory for a log");
    if (comm)
        comm_set_patient(comm, false);
    log_destroy(r.quiet.log);
    mem_free(env, votes);
    return st;
}
