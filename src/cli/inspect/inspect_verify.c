/* inspect_verify -- compares every byte of a checkpoint, or of all checkpoints of a run, with the
 * hashes that were stored when it was written. */
#include <inttypes.h>
#include <string.h>
#include "base/file.h"
#include "cli/inspect/inspect.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_keep.h"

static void show_file(void *user, const struct checkpoint_entry *entry, enum status st)
{
    struct inspection *in = user;
    char line[96], human[32];
    if (in->json) {
        json_out_open(in->json, NULL, '{');
        json_out_string(in->json, "name", entry->name);
        json_out_int(in->json, "bytes", (int64_t)entry->bytes);
        json_out_int(in->json, "pieces", entry->chunk_count);
        json_out_bool(in->json, "good", st == STATUS_OK);
        json_out_close(in->json, '}');
        return;
    }
    snprintf(line, sizeof line, "%s, %s in %" PRId64 " chunk%s",
             st == STATUS_OK ? "good" : "DAMAGED", text_human_bytes(human, (double)entry->bytes),
             entry->chunk_count, entry->chunk_count == 1 ? "" : "s");
    inspect_string(in, entry->name, line);
}

static enum status verify_one(struct inspection *in, const char *folder)
{
    struct checkpoint *checkpoint;
    struct env *env = in->cli->env;
    if (in->json)
        json_out_open(in->json, NULL, '{');
    inspect_string(in, "checkpoint", folder);
    enum status st = checkpoint_open(env, folder, &checkpoint);
    if (st == STATUS_OK) {
        inspect_int(in, "step", checkpoint_state(checkpoint)->progress.step);
        inspect_open_list(in, "files");
        st = checkpoint_verify(checkpoint, show_file, in);
        inspect_close_list(in);
        checkpoint_close(checkpoint);
    }
    if (in->json) {
        json_out_bool(in->json, "good", st == STATUS_OK);
        json_out_close(in->json, '}');
    }
    return st;
}

/* Newest first. All checkpoints are verified; the first failure is returned. */
static enum status verify_run(struct inspection *in, const char *checkpoints)
{
    struct env *env = in->cli->env;
    enum status first = STATUS_OK;
    int64_t step = INT64_MAX, count = 0;
    char *path;
    for (; file_exists(checkpoints); count++) {
        TRY(checkpoint_keep_newest(env, checkpoints, step, &step));
        if (step < 0)
            break;
        TRY(checkpoint_keep_path(env, checkpoints, "", step, "", &path));
        enum status st = verify_one(in, path);
        mem_free(env, path);
        first = first != STATUS_OK ? first : st;
    }
    if (count == 0)
        return FAIL(
            env, FORMAT,
            "'%s' is neither a checkpoint (no state.json) nor a run folder with checkpoints",
            in->path);
    return first;
}

enum status inspect_verify(struct inspection *in)
{
    struct env *env = in->cli->env;
    char *state, *checkpoints;
    enum status st;
    TRY(path_join(env, in->path, "state.json", &state));
    TRY_OR(undo_state, path_join(env, in->path, "checkpoints", &checkpoints));
    inspect_open_list(in, "checkpoints");
    st = file_exists(state) ? verify_one(in, in->path) : verify_run(in, checkpoints);
    inspect_close_list(in);
    mem_free(env, checkpoints);
undo_state:
    mem_free(env, state);
    return st;
}
