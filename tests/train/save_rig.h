/* save_rig -- consecutive runs in one folder, on ranks that are threads, for tests of checkpoints.
 * The rig keeps the log lines of the first rank. */
#ifndef TESTS_TRAIN_SAVE_RIG_H
#define TESTS_TRAIN_SAVE_RIG_H
#include <errno.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/input.h"
#include "base/output.h"
#include "base/progress.h"
#include "run_rig.h"
#include "threads.h"
#include "train/checkpoint/checkpoint.h"

enum { SAVE_MOST_RANKS = 4 };

struct save_rig {
    struct run_rig run;
    char lines[1 << 16]; /* of the last run */
    struct trainer_summary summary;
    struct output_faults faults[SAVE_MOST_RANKS];      /* injected into each rank's writes */
    struct input_faults input_faults[SAVE_MOST_RANKS]; /* and reads */
    struct progress progress;                          /* shared by all ranks */
    const struct progress_view *view;                  /* of rank 0; NULL = none */
    const struct trainer_callbacks *callbacks; /* NULL = none; `user` is the rank's save_seat */
};

struct save_seat { /* the `user` of callbacks */
    struct save_rig *rig;
    int rank;
    int asked; /* number of calls of should_stop */

    struct comm_hub *hub;
    const char *folder;
    enum status status;
};

/* Uses a folder in memory if there is room: these tests call fsync thousands of times, which is
 * slow on some disks. */
static inline void save_open(struct save_rig *rig)
{
    struct statvfs disk;
    char folder[64] = "/dev/shm/sifr-test-XXXXXX";
    rig_open(&rig->run);
    if (statvfs("/dev/shm", &disk) != 0 || disk.f_bavail * disk.f_frsize < (32u << 20) ||
        !mkdtemp(folder))
        return;
    rmdir(rig->run.scratch.folder);
    strcpy(rig->run.scratch.folder, folder);
}

static inline void save_sink(void *user, enum log_level level, const char *line)
{
    struct save_seat *seat = user;
    size_t used = strlen(seat->rig->lines);
    (void)level;
    if (seat->rank == 0)
        snprintf(seat->rig->lines + used, sizeof seat->rig->lines - used, "%s\n", line);
}

static inline void *save_rank(void *argument)
{
    static const struct trainer_callbacks none = {0};
    struct save_seat *seat = argument;
    struct save_rig *rig = seat->rig;
    struct session_ranks ranks = {
        .comm = {.backend = "threads", .timeout = 120.0}, .hub = seat->hub, .rank = seat->rank};
    struct trainer_target place = {.folder = seat->folder,
                                   .config_yaml = text_string(&rig->run.yaml)};
    struct trainer_callbacks callbacks = rig->callbacks ? *rig->callbacks : none;
    struct trainer_summary summary;
    struct env env;
    assert_int_equal(env_create(&env, save_sink, seat, LOG_INFO, 1), STATUS_OK);
    env.faults = &rig->faults[seat->rank];
    env.input_faults = &rig->input_faults[seat->rank];
    env.progress = &rig->progress;
    env.view = seat->rank == 0 ? rig->view : NULL;
    callbacks.user = seat;
    seat->status = trainer_run(&env, &rig->run.config, seat->hub ? &ranks : NULL, &place,
                               &callbacks, &summary);
    if (seat->rank == 0)
        rig->summary = summary;
    env_destroy(&env);
    return NULL;
}

/* Start or resume a run with `settings` in this folder; returns the first rank's status. */
static inline enum status save_train(struct save_rig *rig, const char *folder, int ranks,
                                     const char *settings)
{
    struct save_seat seats[SAVE_MOST_RANKS];
    struct comm_hub *hub = NULL;
    char path[128];
    struct env *env = &rig->run.scratch.env;
    snprintf(path, sizeof path, "%s/%s", rig->run.scratch.folder, folder);
    rig_config(&rig->run, settings);
    *rig->lines = 0;
    if (ranks > 1)
        assert_int_equal(comm_hub_create(env, ranks, &hub), STATUS_OK);
    for (int r = 0; r < ranks; r++)
        seats[r] = (struct save_seat){.rig = rig, .rank = r, .hub = hub, .folder = path};
    threads_run(save_rank, seats, ranks, sizeof *seats);
    comm_hub_destroy(hub);
    return seats[0].status;
}

static inline void save_expect_line(struct save_rig *rig, const char *part)
{
    if (!strstr(rig->lines, part))
        fail_msg("expected '%s' in '%s'", part, rig->lines);
}

static inline bool save_there(struct save_rig *rig, const char *name)
{
    return file_exists(scratch_path(&rig->run.scratch, name));
}

static inline char *save_read(struct save_rig *rig, const char *name, size_t *bytes)
{
    char *text = NULL;
    struct scratch *s = &rig->run.scratch;
    assert_int_equal(file_read(&s->env, scratch_path(s, name), 1 << 26, &text, bytes), STATUS_OK);
    return text;
}

static inline void save_expect_same(struct save_rig *rig, const char *a, const char *b)
{
    size_t bytes[2];
    char *texts[2] = {save_read(rig, a, &bytes[0]), save_read(rig, b, &bytes[1])};
    if (bytes[0] != bytes[1] || memcmp(texts[0], texts[1], bytes[0]) != 0)
        fail_msg("'%s' and '%s' differ", a, b);
    for (int i = 0; i < 2; i++)
        mem_free(&rig->run.scratch.env, texts[i]);
}

/* Verify every byte of a checkpoint, without logging. */
static inline enum status save_verify(struct save_rig *rig, const char *name)
{
    struct checkpoint *checkpoint;
    struct scratch *s = &rig->run.scratch;
    enum status st = checkpoint_open(&s->env, scratch_path(s, name), &checkpoint);
    if (st == STATUS_OK) {
        st = checkpoint_verify(checkpoint, NULL, NULL);
        checkpoint_close(checkpoint);
    }
    return st;
}

#endif
