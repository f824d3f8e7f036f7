/* checkpoint_room -- whether the disk has space for checkpoints when a run starts, and which old
 * ones may be removed to make room for the last one. */
#include <inttypes.h>
#include "base/output.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_keep.h"

/* --- existing checkpoints ------------------------------------------------------------------- */

struct census {
    int64_t count;   /* all checkpoints */
    int64_t passing; /* those that are not multiples of checkpoint.major */
    int64_t may_go;  /* of these, all but the newest checkpoint of the folder */
    int64_t newest;  /* -1 = none */
};

static enum status take_census(struct env *env, const char *folder, int64_t major,
                               struct census *census)
{
    *census = (struct census){.newest = -1};
    for (int64_t step = INT64_MAX;;) {
        TRY(checkpoint_keep_newest(env, folder, step, &step));
        if (step < 0)
            return STATUS_OK;
        bool stays = major > 0 && step % major == 0;
        census->passing += !stays;
        census->may_go += !stays && census->count > 0;
        census->newest = census->count == 0 ? step : census->newest;
        census->count++;
    }
}

/* --- at the start --------------------------------------------------------------------------- */

/* The number of multiples of `every` (0 = none) strictly between `step` and `steps`. */
static int64_t multiples(int64_t every, int64_t step, int64_t steps)
{
    return every > 0 && steps > step ? (steps - 1) / every - step / every : 0;
}

/* The largest number of checkpoints that will exist at once in addition to the current ones. An old
 * one is removed only after a new one is complete. */
static int64_t most_more(const struct checkpoint_room_need *need, const struct census *now)
{
    const struct checkpoint_config *c = need->config;
    int64_t staying = multiples(c->major, need->step, need->steps);
    int64_t passing = multiples(c->every, need->step, need->steps) + 1; /* plus the last one */
    if (c->major > 0 && c->every > 0 && c->every % c->major == 0)
        passing = 1; /* all others are major and are kept */
    else if (c->every > 0 && c->major % c->every == 0)
        passing -= staying;
    int64_t at_once = passing + now->passing < c->keep + 1 ? passing + now->passing : c->keep + 1;
    int64_t more = at_once - now->passing + staying;
    return more > 1 ? more : 1;
}

/* Is there another way to save the last checkpoint? */
static bool has_way_out(struct env *env, const struct checkpoint_room_need *need,
                        const struct census *now, uint64_t room)
{
    const struct checkpoint_config *c = need->config;
    uint64_t there;
    if (*c->fallback && (!output_free(env, c->fallback, &there) || there >= need->bytes))
        return true;
    return c->make_room && room + (uint64_t)now->may_go * need->bytes >= need->bytes;
}

enum status checkpoint_room_check(struct env *env, const struct checkpoint_room_need *need)
{
    struct census now = {.newest = -1};
    char needed[32], there[32], all[32];
    uint64_t room;
    if (!output_free(env, need->folder, &room))
        return STATUS_OK; /* the free space is not known */
    if (!need->empty)
        TRY(take_census(env, need->folder, need->config->major, &now));
    int64_t more = most_more(need, &now);
    text_human_bytes(needed, (double)need->bytes);
    text_human_bytes(there, (double)room);
    text_human_bytes(all, (double)need->bytes * (double)more);
    if (room < need->bytes && !has_way_out(env, need, &now, room))
        return FAIL(env, IO,
                    "'%s': a checkpoint needs %s (%" PRIu64 " bytes) and the disk has room for %s "
                    "(%" PRIu64 " bytes), so the run could not be saved; free space, choose "
                    "another --out, set checkpoint.fallback to a folder with more, or save nothing "
                    "(checkpoint.final=false checkpoint.every=0)",
                    need->folder, needed, need->bytes, there, room);
    if (room < need->bytes)
        log_warn(
            env,
            "'%s': a checkpoint needs %s and the disk has room for %s: none can be saved there "
            "now, and the last one depends on checkpoint.fallback or checkpoint.make_room",
            need->folder, needed, there);
    else if (room / need->bytes < (uint64_t)more)
        log_warn(env,
                 "'%s': there will be up to %" PRId64 " more checkpoints at once, %s, and the disk "
                 "has room for %s: some may fail; free space, lower checkpoint.keep or set "
                 "checkpoint.fallback",
                 need->folder, more, all, there);
    return STATUS_OK;
}

/* --- at the end ----------------------------------------------------------------------------- */

static enum status verify(struct env *env, const char *folder, int64_t step)
{
    struct checkpoint *checkpoint = NULL;
    char *path;
    TRY(checkpoint_keep_path(env, folder, "", step, "", &path));
    enum status st = checkpoint_open(env, path, &checkpoint);
    if (st == STATUS_OK)
        st = checkpoint_verify(checkpoint, NULL, NULL);
    checkpoint_close(checkpoint);
    mem_free(env, path);
    return st;
}

enum status checkpoint_room_make(struct env *env, const char *folder, int64_t major, bool *made)
{
    struct census before, after = {0};
    *made = false;
    TRY(take_census(env, folder, major, &before));
    if (before.may_go == 0)
        return STATUS_OK;
    TRY(verify(env, folder, before.newest));
    /* Lower `keep` until a checkpoint has been removed. */
    for (int64_t keep = before.count - 1; keep > 0 && !*made; keep--) {
        TRY(checkpoint_keep_prune(env, folder, keep, major));
        TRY(take_census(env, folder, major, &after));
        *made = after.count < before.count;
    }
    return STATUS_OK;
}
