/* run_saves -- see the header. */
#include "train/run_saves.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum status run_saves_open(struct env *env, const struct checkpoint_setup *setup, bool speaks,
                           const struct trainer_callbacks *callbacks,
                           struct trainer_summary *summary, struct run_saves *saves)
{
    *saves = (struct run_saves){.env = env,
                                .callbacks = callbacks,
                                .summary = summary,
                                .speaks = speaks,
                                .last_step = saves->last_step};
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
    if (*result->note && saves->speaks && strcmp(result->note, saves->noted) != 0) {
        log_warn(saves->env, "checkpoints: %s", result->note);
        memcpy(saves->noted, result->note, sizeof saves->noted);
    }
    if (!result->saved)
        return;
    saves->last_step = result->step;
    saves->summary->save = (struct trainer_save){.bytes = result->bytes,
                                                 .seconds = result->seconds,
                                                 .written = result->written,
                                                 .stood = result->stood};
    snprintf(saves->summary->checkpoint, sizeof saves->summary->checkpoint, "%s", result->path);
}

static void tell(struct run_saves *saves, const struct checkpoint_result *result)
{
    note(saves, result);
    if (!saves->speaks)
        return;
    if (!result->saved)
        log_warn(
            saves->env, "THE CHECKPOINT OF STEP %" PRId64 " WAS NOT SAVED: %s; the run goes on, %s",
            result->step, result->error,
            saves->last_step >= 0 ? "and the one before is there" : "and there is none before it");
    else if (saves->callbacks->saved)
        saves->callbacks->saved(saves->callbacks->user, result);
}

void run_saves_look(struct run_saves *saves)
{
    struct checkpoint_result result;
    if (checkpoint_saver_result(saves->saver, false, &result))
        tell(saves, &result);
}

/* Wait for a save that is under way. */
static void await(struct run_saves *saves)
{
    struct checkpoint_result result;
    if (checkpoint_saver_result(saves->saver, true, &result))
        tell(saves, &result);
}

enum status run_saves_begin(struct run_saves *saves, const struct checkpoint_progress *progress)
{
    await(saves);
    return checkpoint_saver_save(saves->saver, progress);
}

enum status run_saves_finish(struct run_saves *saves, const struct checkpoint_progress *progress)
{
    struct checkpoint_result result;
    await(saves);
    if (progress == NULL || saves->last_step == progress->step)
        return STATUS_OK;
    TRY(checkpoint_saver_save(saves->saver, progress));
    CHECK(checkpoint_saver_result(saves->saver, true, &result));
    note(saves, &result);
    if (result.saved)
        return STATUS_OK;
    return log_fail(saves->env->log, result.status, __FILE__, __LINE__,
                    "the checkpoint of step %" PRId64 " was not saved: %s", result.step,
                    result.error);
}
