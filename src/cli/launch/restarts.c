/* restarts -- progress is read from the run folder: the newest checkpoint and the last line of
 * metrics.jsonl. A restart truncates metrics.jsonl to its checkpoint, so the largest step of all
 * attempts is kept here. */
#include "cli/launch/launch.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include "base/clock.h"
#include "base/file.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/run/line_file.h"
#include "train/run/run_folder.h"

enum { MOST_IDLE = 3 }; /* restarts in a row without progress */

struct reach {
    int64_t step;  /* largest step in metrics.jsonl; 0 = none */
    int64_t saved; /* step of the newest checkpoint; -1 = none */
};

struct restarts {
    struct cli *cli;
    const struct restarts_order *order;
    double began;
    struct reach reach; /* of all attempts */
    int64_t count;      /* restarts so far */
    int idle;           /* how many of the last restarts made no progress */
    bool moves;         /* an earlier run has to be renamed ... */
    struct stat before; /* ... which is this folder */
};

/* --- progress, from the run folder ---------------------------------------------------------- */

static enum status look(struct restarts *r, struct reach *reach)
{
    struct env *env = r->cli->env;
    enum status st;
    char *metrics, *checkpoints;
    TRY(path_join(env, r->order->folder, "metrics.jsonl", &metrics));
    TRY_OR(undo_metrics, path_join(env, r->order->folder, "checkpoints", &checkpoints));
    TRY_OR(undo_checkpoints, line_file_last(env, metrics, &reach->step));
    st = checkpoint_keep_newest(env, checkpoints, INT64_MAX, &reach->saved);
undo_checkpoints:
    mem_free(env, checkpoints);
undo_metrics:
    mem_free(env, metrics);
    return st;
}

/* Does the folder still hold the earlier run? Once it is renamed, another inode has its name. */
static bool is_to_move(const struct restarts *r)
{
    struct stat now;
    return r->moves && stat(r->order->folder, &now) == 0 && now.st_ino == r->before.st_ino &&
           now.st_dev == r->before.st_dev;
}

static enum status begin(struct restarts *r)
{
    const struct restarts_order *order = r->order;
    r->began = clock_seconds();
    if (order->most == 0)
        return STATUS_OK;
    if (order->fresh) {
        TRY(run_folder_check(r->cli->env, order->folder, true, &r->moves));
        r->moves = r->moves && stat(order->folder, &r->before) == 0;
        r->reach.saved = -1;
        return STATUS_OK;
    }
    return look(r, &r->reach);
}

/* Update the progress, and count restarts without any. */
static enum status note_progress(struct restarts *r)
{
    struct reach now = {.saved = -1};
    if (!is_to_move(r))
        TRY(look(r, &now));
    bool further = now.step > r->reach.step || now.saved > r->reach.saved;
    r->idle = r->count == 0 || further ? 0 : r->idle + 1;
    if (now.step > r->reach.step)
        r->reach.step = now.step;
    r->reach.saved = now.saved; /* may be less: a damaged checkpoint was renamed */
    return STATUS_OK;
}

/* --- the next attempt ----------------------------------------------------------------------- */

static double seconds_left(const struct restarts *r)
{
    return r->order->max_seconds - (clock_seconds() - r->began);
}

/* Why there is no further attempt; "" = there is one. */
static void find_refusal(const struct restarts *r, char *why, size_t bytes)
{
    const struct restarts_order *order = r->order;
    *why = 0;
    if (*r->cli->stop)
        snprintf(why, bytes, "no restart: the run was asked to stop");
    else if (r->idle == MOST_IDLE)
        snprintf(why, bytes, "giving up: %d restarts in a row made no progress after step %" PRId64,
                 MOST_IDLE, r->reach.step);
    else if (r->count == order->most)
        snprintf(why, bytes, "giving up: all %" PRId64 " restarts (--restarts) are used",
                 order->most);
    else if (order->max_seconds > 0 && seconds_left(r) < 1)
        snprintf(why, bytes, "no restart: train.max_time is over");
}

static enum status tell_end(struct cli *cli, enum status st, const struct launch_end *end,
                            const char *why)
{
    bool tells = *end->words && !end->said;
    if (!tells && !*why)
        return st;
    return log_fail(cli->env->log, st, __FILE__, __LINE__, "%s%s%s", tells ? end->words : "",
                    tells && *why ? "; " : "", why);
}

enum status restarts_run(struct cli *cli, const struct restarts_order *order,
                         restarts_start_fn *start, void *user)
{
    struct restarts r = {.cli = cli, .order = order};
    struct restarts_attempt attempt = {.fresh = order->fresh, .max_seconds = order->max_seconds};
    char why[160];
    TRY(begin(&r));
    for (;;) {
        struct launch_end end;
        enum status st = start(user, &attempt, &end);
        if (!end.died || order->most == 0)
            return tell_end(cli, st, &end, "");
        TRY(note_progress(&r));
        find_refusal(&r, why, sizeof why);
        if (*why)
            return tell_end(cli, st, &end, why);
        r.count++;
        attempt = (struct restarts_attempt){
            .again = true,
            .fresh = is_to_move(&r),
            .max_seconds = order->max_seconds > 0 ? seconds_left(&r) : 0,
        };
        char from[80] = "starts from the beginning: there is no checkpoint yet";
        if (r.reach.saved >= 0)
            snprintf(from, sizeof from, "resumes after step %" PRId64, r.reach.saved);
        log_warn(cli->env, "RESTART %" PRId64 " of %" PRId64 ": %s; the run %s", r.count,
                 order->most, end.words, from);
    }
}
