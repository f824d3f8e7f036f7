#include "train/run/run_saves.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum status run_saves_open(struct env *env, const struct checkpoint_setup *setup,
                           const struct trainer_callbacks *callbacks,
                           struct trainer_summary *summary, struct run_saves *saves)
{
    *saves = (struct run_saves){.env = env,
                                .callbacks = callbacks,
                                .summary = summary,
                                .config = setup->config,
                                .comm = setup->comm,
                                .run = setup->run,
                                .folder = setup->folder,
                                .is_first = !setup->comm || comm_rank(setup->comm) == 0,
                                .last_step = saves->last_step,
                                .in_fallback = saves->in_fallback};
    return checkpoint_saver_create(env, setup, &saves->saver);
}

void run_saves_close(struct run_saves *saves)
{
    checkpoint_saver_destroy(saves->saver);
    *saves = (struct run_saves){0};
}

static void note(struct run_saves *saves, const struct checkpoint_result *result)
{
    if (result->seconds > saves->seconds)
        saves->seconds = result->seconds;
    if (*result->note && saves->is_first && strcmp(result->note, saves->noted) != 0) {
        log_warn(saves->env, "checkpoints: %s", result->note);
        memcpy(saves->noted, result->note, sizeof saves->noted);
    }
    if (!result->saved)
        return;
    saves->last_step = result->step;
    saves->in_fallback = strncmp(result->path, saves->folder, strlen(saves->folder)) != 0;
    saves->summary->save = (struct trainer_save){.bytes = result->bytes,
                                                 .seconds = result->seconds,
                                                 .written = result->written,
                                                 .stood = result->stood};
    snprintf(saves->summary->checkpoint, sizeof saves->summary->checkpoint, "%s", result->path);
}

/* Report a save that has ended; with `wait`, first wait for one in progress. */
static void report_ended(struct run_saves *saves, bool wait)
{
    struct checkpoint_result result;
    if (!checkpoint_saver_result(saves->saver, wait, &result))
        return;
    note(saves, &result);
    if (!saves->is_first)
        return;
    if (!result.saved)
        log_warn(saves->env,
                 "THE CHECKPOINT OF STEP %" PRId64 " WAS NOT SAVED: %s; the run continues, %s",
                 result.step, result.error,
                 saves->last_step >= 0 ? "and the previous checkpoint is intact"
                                       : "without an earlier checkpoint");
    else if (saves->callbacks->saved)
        saves->callbacks->saved(saves->callbacks->user, &result);
}

void run_saves_look(struct run_saves *saves)
{
    report_ended(saves, false);
}

enum status run_saves_begin(struct run_saves *saves, const struct checkpoint_progress *progress)
{
    report_ended(saves, true);
    return checkpoint_saver_save(saves->saver, progress);
}

/* Describe what is lost when the last save fails, and what to do. */
static void say_loss(const struct run_saves *saves, const struct checkpoint_result *result,
                     char *out, size_t bytes)
{
    char need[32], cure[256];
    text_human_bytes(need, (double)checkpoint_saver_bytes(saves->saver));
    if (result->no_space)
        snprintf(cure, sizeof cure, "free %s there or set checkpoint.fallback", need);
    else
        snprintf(cure, sizeof cure, "set checkpoint.fallback to a folder on another disk");
    if (saves->last_step >= 0)
        snprintf(out, bytes,
                 "what was learnt after step %" PRId64 " is lost, the checkpoint of that step is "
                 "there; %s, and the same command resumes from it",
                 saves->last_step, cure);
    else
        snprintf(out, bytes,
                 "there is no checkpoint before it, so all steps are lost; %s, and the "
                 "same command begins again",
                 cure);
}

enum status run_saves_finish(struct run_saves *saves, const struct checkpoint_progress *progress)
{
    struct checkpoint_result result;
    char loss[512];
    report_ended(saves, true);
    bool have = progress && saves->last_step == progress->step;
    if (progress == NULL || (have && !saves->in_fallback))
        return STATUS_OK;
    TRY(last_save(saves, progress, &result));
    note(saves, &result);
    if (!result.saved && have && saves->is_first)
        log_warn(saves->env, "the checkpoint is still only in '%s': %s", saves->summary->checkpoint,
                 result.error);
    if (result.saved || have)
        return STATUS_OK;
    saves->lost = result.status != STATUS_COMM;
    say_loss(saves, &result, loss, sizeof loss);
    return log_fail(saves->env->log, result.status, __FILE__, __LINE__,
                    "the checkpoint of step %" PRId64 " was not saved: %s; %s", result.step,
                    result.error, loss);
}
