/* checkpoint_write -- the steps of a save.
 *
 *     rank 0        create .step-N.tmp, its files (header, full length), config.json, tokenizer
 *     all           agree
 *     all           write their parts of every tensor, hash them, sync
 *     all           agree
 *     all           send the hashes to rank 0
 *     rank 0        state.json, COMPLETE, sync, rename to step-N, sync the parent, remove old ones
 *     all           agree
 *
 * A rank that fails continues to the next agreement and reports the failure there. Then all ranks
 * give up, and rank 0 removes the temporary folder.
 */
#include "train/checkpoint/checkpoint_write.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/clock.h"
#include "base/direct.h"
#include "base/file.h"
#include "base/output.h"
#include "base/part_folder.h"
#include "base/progress.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/weights/model_file.h"

enum { ERROR_BYTES = 500 }; /* a vote is a multiple of 8 bytes */
enum {
    WIDE_BYTES = 2 * CHECKPOINT_CHUNK
}; /* fp32 elements of a chunk that is written in 16 bits */
enum { CHUNK_BYTES = WIDE_BYTES + CHECKPOINT_CHUNK };
enum { ROOM_BYTES = CHECKPOINT_CHUNK }; /* of one write */
struct vote {
    double stood; /* seconds that this rank's run was blocked */
    enum status status;
    int number;       /* from rank 0: the number in the folder's name (part_folder.h) */
    int32_t no_space; /* it failed because the disk is full */
    char error[ERROR_BYTES];
};

struct write {
    const struct checkpoint_job *job;
    struct env *env;
    int rank, size;
    struct part_folder *folder; /* on rank 0 */
    int number;                 /* in its name; 0 = not known yet */
    char *stem, *partial, *final;
    struct checkpoint_result *result;
    double started;
    bool no_space; /* the disk had too little free space before anything was written */
    int file;      /* the open file; -1 = none */
    struct direct out;
    void *chunk;      /* the current chunk: in fp32, followed by space for it in 16 bits */
    void *room;       /* buffer of `out` */
    uint64_t *hashes; /* of this rank's parts */
    int64_t hash_count;
    int64_t parts;      /* of this rank */
    struct vote *votes; /* (ranks), in job->room */
    void *hash_room;    /* follows the votes in job->room */
};

/* --- agreement ------------------------------------------------------------------------------ */

/* The first failed vote is the result on every rank. */
static enum status count_votes(struct write *w, const struct vote *votes)
{
    w->number = votes[0].number;
    for (int r = 0; r < w->size; r++) {
        char who[32] = "";
        if (votes[r].stood > w->result->stood)
            w->result->stood = votes[r].stood;
        if (votes[r].status == STATUS_OK)
            continue;
        if (w->size > 1)
            snprintf(who, sizeof who, "rank %d: ", r);
        snprintf(w->result->error, sizeof w->result->error, "%s%s", who, votes[r].error);
        w->result->no_space = votes[r].no_space;
        return votes[r].status;
    }
    return STATUS_OK;
}

static enum status agree(struct write *w, enum status st)
{
    struct comm *comm = w->job->comm;
    struct vote mine = {.status = st, .stood = w->job->stood, .number = w->number};
    if (*w->result->error) /* all ranks know it already */
        return st;
    if (st != STATUS_OK) {
        snprintf(mine.error, sizeof mine.error, "%s", log_first_error(w->env->log));
        mine.no_space = w->no_space || output_ran_out();
    }
    if (!comm)
        return count_votes(w, &mine);
    TRY(comm_exchange(comm, &mine, sizeof mine, w->votes));
    return count_votes(w, w->votes);
}

/* --- rank 0: folders, headers, small files -------------------------------------------------- */

static enum status inside(struct write *w, const char *name, char **path)
{
    return path_join(w->env, w->partial, name, path);
}

static enum status write_inside(struct write *w, const char *name, const char *data, size_t bytes)
{
    char *path;
    TRY(inside(w, name, &path));
    enum status st = file_write_atomic(w->env, path, data, bytes);
    mem_free(w->env, path);
    return st;
}

static enum status check_room(struct write *w)
{
    const char *folder = w->job->setup->folder;
    uint64_t bytes = w->job->layout->bytes, room;
    char needed[32], there[32];
    if (!output_free(w->env, folder, &room) || room >= bytes)
        return STATUS_OK; /* if the free space is unknown, a full disk fails a write later */
    w->no_space = true;
    return FAIL(w->env, IO, "'%s': a checkpoint needs %s and the disk has room for %s", folder,
                text_human_bytes(needed, (double)bytes), text_human_bytes(there, (double)room));
}

static enum status make_folders(struct write *w)
{
    char *optimizer;
    TRY(dir_create(w->env, w->job->setup->folder));
    if (!path_is_free(w->final))
        return FAIL(w->env, IO, "'%s' already exists", w->final);
    TRY(check_room(w));
    TRY(part_folder_create(w->env, w->stem, &w->folder));
    w->number = part_folder_number(w->folder);
    TRY(part_folder_name(w->env, w->stem, w->number, &w->partial));
    TRY(inside(w, "optimizer", &optimizer));
    enum status st = dir_create(w->env, optimizer);
    mem_free(w->env, optimizer);
    return st;
}

/* Create a file with its header and full length. The ranks write the tensors. */
static enum status make_file(struct write *w, const struct checkpoint_file *file)
{
    size_t bytes;
    const void *header = safetensors_layout_header(file->tensors, &bytes);
    int fd;
    char *path;
    TRY(inside(w, file->name, &path));
    bool done = output_open(w->env, path, O_WRONLY | O_CREAT | O_EXCL, &fd) &&
                output_reserve(w->env, fd, safetensors_layout_file_bytes(file->tensors)) &&
                output_write_at(w->env, fd, 0, header, bytes) && output_sync(w->env, fd);
    int reason = errno;
    if (fd >= 0 && !output_close(w->env, fd) && done) {
        done = false;
        reason = errno;
    }
    enum status st =
        done ? STATUS_OK : FAIL(w->env, IO, "cannot write '%s': %s", path, strerror(reason));
    mem_free(w->env, path);
    return st;
}

static enum status make_files(struct write *w)
{
    const struct checkpoint_setup *setup = w->job->setup;
    struct text index;
    if (w->rank != 0)
        return STATUS_OK;
    TRY(make_folders(w));
    for (int i = 0; i < w->job->layout->file_count; i++)
        TRY(make_file(w, &w->job->layout->files[i]));
    /* The index maps tensors to files, if the model has several files. */
    text_init(&index, w->env);
    checkpoint_layout_index(w->job->layout, &index);
    enum status st = index.status;
    if (st == STATUS_OK && index.bytes > 0)
        st = write_inside(w, "model.safetensors.index.json", index.data, index.bytes);
    text_free(&index);
    TRY(st);
    if (setup->own && setup->own->bytes > 0)
        TRY(write_inside(w, CHECKPOINT_OWN_FILE, setup->own->data, setup->own->bytes));
    return setup->model ? model_file_describe(w->env, w->partial, setup->model, setup->type,
                                              setup->tokenizer)
                        : STATUS_OK;
}

/* --- every rank: its parts ------------------------------------------------------------------ */

static enum status fail_file(struct write *w)
{
    int reason = errno;
    return FAIL(w->env, IO, "cannot write '%s/%s': %s", w->partial,
                w->job->layout->files[w->file].name, strerror(reason));
}

static enum status end_file(struct write *w)
{
    enum status st = STATUS_OK;
    if (w->file < 0)
        return STATUS_OK;
    if (!direct_sync(&w->out))
        st = fail_file(w);
    if (!direct_close(&w->out) && st == STATUS_OK)
        st = fail_file(w);
    w->file = -1;
    return st;
}

static enum status switch_file(struct write *w, int file)
{
    char *path;
    if (w->file == file)
        return STATUS_OK;
    TRY(end_file(w));
    TRY(inside(w, w->job->layout->files[file].name, &path));
    w->file = file;
    enum status st = STATUS_OK;
    if (!direct_open(w->env, path, w->job->setup->config->direct, direct_align(w->room), ROOM_BYTES,
                     &w->out)) {
        st = fail_file(w);
        w->file = -1;
    }
    mem_free(w->env, path);
    return st;
}

/* Tensors are in the same order in all roles: when one is written in the last of them, those before
 * it are complete. */
static enum checkpoint_role last_role(const struct checkpoint_layout *layout)
{
    return layout->files[layout->file_count - 1].role;
}

static enum status write_part(void *user, const struct checkpoint_part *part)
{
    struct write *w = user;
    const struct checkpoint_file *file = &w->job->layout->files[part->file];
    const struct checkpoint_item *item = &file->items[part->item];
    struct zero *zero = w->job->setup->zero;
    enum dtype type = zero_state_array(zero, item->state, item->tensor).type;
    const void *data = w->chunk;
    TRY(switch_file(w, part->file));
    if (w->job->setup->from_snapshot && file->role == last_role(w->job->layout))
        zero_snapshot_pass(zero, item->tensor);
    if (w->job->setup->from_snapshot)
        TRY(zero_snapshot_read(zero, item->state, item->tensor, part->first, part->count, w->chunk,
                               &data));
    else
        TRY(zero_state_read(zero, item->state, item->tensor, part->first, part->count, w->chunk));
    if (item->type != type) { /* params of a 16-bit run */
        void *narrow = (char *)w->chunk + WIDE_BYTES;
        dtype_convert(narrow, item->type, data, type, part->count);
        data = narrow;
    }
    w->hashes[w->hash_count++] = XXH3_64bits(data, part->bytes);
    if (!direct_write(&w->out, part->begin, data, part->bytes))
        return fail_file(w);
    /* The other ranks are about as far with their parts. */
    double share = (double)w->hash_count / (double)w->parts;
    progress_reach(w->env, w->job->task, (uint64_t)(share * (double)w->job->layout->bytes));
    return STATUS_OK;
}

static enum status write_parts(struct write *w)
{
    const struct checkpoint_job *job = w->job;
    if (!w->partial)
        TRY(part_folder_name(w->env, w->stem, w->number, &w->partial));
    w->parts = checkpoint_layout_parts(job->layout, job->setup->zero, w->rank);
    TRY(mem_alloc(w->env, MEM_OTHER, "checkpoint chunk", CHUNK_BYTES, &w->chunk));
    TRY(mem_alloc(w->env, MEM_OTHER, "checkpoint chunk", ROOM_BYTES + DIRECT_BLOCK, &w->room));
    TRY(mem_alloc_array(w->env, MEM_OTHER, "hashes", (size_t)w->parts, sizeof *w->hashes,
                        &w->hashes));
    enum status st = checkpoint_layout_visit(job->layout, job->setup->zero, w->rank, write_part, w);
    enum status ended = end_file(w);
    return st != STATUS_OK ? st : ended;
}

/* --- rank 0: state.json and the rename ------------------------------------------------------ */

static enum status write_state(struct write *w, const struct checkpoint_list *list)
{
    const struct checkpoint_setup *setup = w->job->setup;
    struct checkpoint_state state = {.env = w->env,
                                     .progress = w->job->progress,
                                     .data = setup->data,
                                     .files = setup->files,
                                     .workers = zero_roster(setup->zero)->workers,
                                     .arithmetic = OPS_ARITHMETIC,
                                     .print = setup->print};
    struct text text;
    char marker[CHECKPOINT_MARKER], *optimizer;
    text_init(&text, w->env);
    enum status st = mem_strdup(w->env, setup->config_yaml, &state.config);
    if (st == STATUS_OK)
        st = checkpoint_optimizers_of(w->env, setup->graph, setup->zero, &state.optimizers);
    if (st == STATUS_OK)
        st = checkpoint_list_entries(list, w->partial, &state);
    if (st == STATUS_OK) {
        checkpoint_state_print(&state, &text);
        st = text.status;
    }
    /* The file names must be durable before the marker is. */
    if (st == STATUS_OK && (st = inside(w, "optimizer", &optimizer)) == STATUS_OK) {
        st = dir_sync(w->env, optimizer);
        mem_free(w->env, optimizer);
    }
    if (st == STATUS_OK)
        st = write_inside(w, "state.json", text.data, text.bytes);
    if (st == STATUS_OK) {
        checkpoint_marker(text.data, text.bytes, marker);
        st = write_inside(w, "COMPLETE", marker, strlen(marker));
    }
    for (int i = 0; i < state.entry_count; i++)
        w->result->bytes += state.entries[i].bytes;
    checkpoint_state_free(&state);
    text_free(&text);
    return st;
}

/* Rename the folder: from now on the checkpoint exists. */
static enum status publish(struct write *w)
{
    const struct checkpoint_setup *setup = w->job->setup;
    enum status st = part_folder_commit(w->folder, w->final);
    if (part_folder_path(w->folder) != NULL)
        return st;
    w->result->written = clock_seconds() - w->started;
    if (st == STATUS_OK) /* if the rename is not durable, the older checkpoints are still needed */
        st =
            checkpoint_keep_prune(w->env, setup->folder, setup->config->keep, setup->config->major);
    if (st != STATUS_OK)
        snprintf(w->result->note, sizeof w->result->note, "%s", log_first_error(w->env->log));
    return STATUS_OK;
}

static enum status complete(struct write *w)
{
    const struct checkpoint_job *job = w->job;
    struct checkpoint_list list;
    enum status st = checkpoint_list_create(w->env, job->layout, job->setup->zero, w->size, &list);
    TRY_OR(done, agree(w, st));
    TRY_OR(done, checkpoint_list_gather(&list, job->comm, w->hashes, w->hash_count, w->hash_room));
    if (w->rank == 0)
        TRY_OR(done, write_state(w, &list));
    if (w->rank == 0)
        TRY_OR(done, publish(w));
done:
    checkpoint_list_free(&list);
    return st;
}

/* --- the save ------------------------------------------------------------------------------- */

static enum status save(struct write *w)
{
    const char *folder = w->job->setup->folder;
    int64_t step = w->job->progress.step;
    enum status st = checkpoint_keep_path(w->env, folder, ".", step, ".tmp", &w->stem);
    if (st == STATUS_OK)
        st = checkpoint_keep_path(w->env, folder, "", step, "", &w->final);
    if (st == STATUS_OK)
        st = make_files(w);
    TRY(agree(w, st));
    TRY(agree(w, write_parts(w)));
    return agree(w, complete(w));
}

size_t checkpoint_write_room(int ranks)
{
    return (size_t)ranks * sizeof(struct vote) + checkpoint_list_room(ranks);
}

size_t checkpoint_write_bytes(void)
{
    return CHUNK_BYTES + ROOM_BYTES + DIRECT_BLOCK;
}

void checkpoint_write(const struct checkpoint_job *job, struct checkpoint_result *result)
{
    struct comm *comm = job->comm;
    struct write w = {.job = job,
                      .env = job->env,
                      .rank = comm ? comm_rank(comm) : 0,
                      .size = comm ? comm_size(comm) : 1,
                      .result = result,
                      .started = clock_seconds(),
                      .votes = job->room,
                      .file = -1};
    w.hash_room = w.votes + w.size;
    *result = (struct checkpoint_result){.step = job->progress.step};
    output_forget();
    if (comm)
        comm_set_patient(comm, true); /* some disks are slower than others */
    enum status st = save(&w);
    if (comm)
        comm_set_patient(comm, false);
    result->saved = st == STATUS_OK;
    result->status = st;
    if (w.final)
        snprintf(result->path, sizeof result->path, "%s", w.final);
    if (!result->saved && !*result->error) /* the communicator failed */
        snprintf(result->error, sizeof result->error, "%s", log_first_error(job->env->log));
    part_folder_destroy(w.folder);
    mem_free(w.env, w.hashes);
    mem_free(w.env, w.room);
    mem_free(w.env, w.chunk);
    mem_free(w.env, w.final);
    mem_free(w.env, w.partial);
    mem_free(w.env, w.stem);
}
