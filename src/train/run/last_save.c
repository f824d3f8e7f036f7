/* last_save -- saves the last checkpoint of a run. Without it all steps since the previous one are
 * lost, so a failure is followed by these attempts, in order:
 *
 *     run folder                as every other checkpoint; after a transient failure, once more
 *     checkpoint.fallback       if it is set, after any I/O failure
 *     checkpoint.make_room      if it is set and the disk is full: remove the oldest checkpoint
 *                               that may be removed (checkpoint.h) and retry, repeatedly
 *     checkpoint.wait_for_space if the disk is full: wait until there is room and retry. A stop
 *                               request ends the wait
 *
 * Rank 0 decides, and all ranks do the same.
 */
#include "train/run/run_saves.h"
#include <inttypes.h>
#include "base/clock.h"
#include "base/output.h"
#include "base/progress.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/schedule.h"
#include "train/checkpoint/fallback.h"

static const double LOOK_EVERY = 1.0; /* seconds between two checks for free space */

struct attempt {
    struct run_saves *saves;
    const struct checkpoint_progress *progress;
    struct checkpoint_result *result; /* of the newest attempt */
};

/* --- between ranks -------------------------------------------------------------------------- */

struct word {
    uint64_t first; /* the value of rank 0 */
    int64_t any;    /* bitwise or over all ranks */
};

static enum status exchange(struct run_saves *saves, struct word *word)
{
    struct comm *comm = saves->comm;
    struct word *all;
    if (!comm)
        return STATUS_OK;
    size_t size = (size_t)comm_size(comm);
    TRY(mem_alloc_array(saves->env, MEM_OTHER, "last save", size, sizeof *all, &all));
    enum status st = comm_exchange(comm, word, sizeof *word, all);
    for (size_t r = 0; st == STATUS_OK && r < size; r++)
        word->any |= all[r].any;
    if (st == STATUS_OK)
        word->first = all[0].first;
    mem_free(saves->env, all);
    return st;
}

/* Suspend the timeout while ranks wait for rank 0, which reads or removes files. */
static void be_patient(struct run_saves *saves, bool patient)
{
    if (saves->comm)
        comm_set_patient(saves->comm, patient);
}

/* --- attempts ------------------------------------------------------------------------------- */

static enum status save_in(struct attempt *a, const char *folder)
{
    struct run_saves *saves = a->saves;
    checkpoint_saver_set_folder(saves->saver, folder);
    enum status st = checkpoint_saver_save(saves->saver, a->progress);
    if (st == STATUS_OK)
        CHECK(checkpoint_saver_result(saves->saver, true, a->result));
    checkpoint_saver_set_folder(saves->saver, saves->folder);
    return st;
}

static enum status save_to_fallback(struct attempt *a)
{
    struct run_saves *saves = a->saves;
    struct word id = {.first = saves->is_first ? fallback_id(saves->env, saves->run) : 0};
    char *folder;
    TRY(exchange(saves, &id));
    TRY(fallback_folder(saves->env, saves->config->fallback, saves->run, id.first, &folder));
    enum status st = save_in(a, folder);
    if (st == STATUS_OK && saves->is_first && a->result->saved)
        log_warn(saves->env,
                 "the checkpoint of step %" PRId64 " is in '%s'; the same command resumes from it "
                 "if checkpoint.fallback is set as it is now",
                 a->progress->step, a->result->path);
    else if (st == STATUS_OK && saves->is_first)
        log_warn(saves->env, "nor could it be saved in checkpoint.fallback: %s", a->result->error);
    mem_free(saves->env, folder);
    return st;
}

/* Remove an old checkpoint. *made tells whether one was removed. */
static enum status make_room(struct run_saves *saves, bool *made)
{
    struct word word = {0};
    *made = false;
    be_patient(saves, true);
    if (saves->is_first) {
        if (checkpoint_room_make(saves->env, saves->folder, saves->config->major, made) !=
            STATUS_OK)
            log_error_clear(saves->env->log); /* already logged; only the save matters */
        word.first = *made;
    }
    enum status st = exchange(saves, &word);
    be_patient(saves, false);
    *made = word.first != 0;
    return st;
}

static enum status save_in_made_room(struct attempt *a)
{
    bool made = true;
    while (!a->result->saved && a->result->no_space && made) {
        TRY(make_room(a->saves, &made));
        if (!made)
            return STATUS_OK;
        if (a->saves->is_first)
            log_warn(a->saves->env,
                     "an older checkpoint was removed from '%s' to make room "
                     "(checkpoint.make_room)",
                     a->saves->folder);
        TRY(save_in(a, a->saves->folder));
    }
    return STATUS_OK;
}

static bool wants_stop(const struct run_saves *saves)
{
    const struct trainer_callbacks *c = saves->callbacks;
    return c->should_stop && c->should_stop(c->user);
}

static enum status save_when_there_is_room(struct attempt *a)
{
    struct run_saves *saves = a->saves;
    /* A run that was already asked to stop waits all the same. Then only a second Ctrl-C, which
     * ends the process, ends the wait. */
    bool asked = wants_stop(saves);
    char need[32], time[32];
    double seconds;
    if (!deadline_parse(saves->config->wait_for_space, &seconds) || seconds <= 0)
        return STATUS_OK;
    if (saves->is_first)
        log_warn(saves->env,
                 "the checkpoint of step %" PRId64 " is not saved yet: %s; free %s for '%s' and it "
                 "will be: waiting %s (checkpoint.wait_for_space), Ctrl-C ends the wait and the "
                 "steps are lost",
                 a->progress->step, a->result->error,
                 text_human_bytes(need, (double)checkpoint_saver_bytes(saves->saver)),
                 saves->folder, text_human_seconds(time, seconds));
    for (double end = clock_seconds() + seconds; !a->result->saved && a->result->no_space;) {
        clock_sleep(LOOK_EVERY);
        progress_add(saves->env); /* this wait is intended and has its own limit */
        uint64_t room, over = clock_seconds() >= end;
        bool fits = saves->is_first && output_free(saves->env, saves->folder, &room) &&
                    room >= checkpoint_saver_bytes(saves->saver);
        struct word word = {.first = saves->is_first ? over * 2 + fits : 0,
                            .any = !asked && wants_stop(saves)};
        TRY(exchange(saves, &word));
        if (word.first & 1)
            TRY(save_in(a, saves->folder));
        if (word.any || word.first >= 2) /* the limit holds even if writes keep failing */
            return STATUS_OK;
    }
    return STATUS_OK;
}

enum status last_save(struct run_saves *saves, const struct checkpoint_progress *progress,
                      struct checkpoint_result *result)
{
    struct attempt a = {saves, progress, result};
    TRY(save_in(&a, saves->folder));
    if (!result->saved && !result->no_space &&
        (result->status == STATUS_IO ||
         result->status == STATUS_MEMORY)) { /* may be transient: the same on all ranks */
        if (saves->is_first)
            log_warn(saves->env,
                     "the checkpoint of step %" PRId64 " could not be saved: %s; trying once more",
                     result->step, result->error);
        TRY(save_in(&a, saves->folder));
    }
    const struct checkpoint_result first = *result;
    /* If the fallback already has this step, this attempt only tried to copy it back. */
    if (first.saved || first.status != STATUS_IO ||
        (saves->in_fallback && saves->last_step == first.step))
        return STATUS_OK;
    if (*saves->config->fallback) {
        if (saves->is_first)
            log_warn(saves->env, "the checkpoint of step %" PRId64 " could not be saved: %s",
                     first.step, first.error);
        TRY(save_to_fallback(&a));
        if (!result->saved)
            *result = first;
    }
    if (!result->saved && first.no_space && saves->config->make_room)
        TRY(save_in_made_room(&a));
    if (!result->saved && result->no_space)
        TRY(save_when_there_is_room(&a));
    return STATUS_OK;
}
