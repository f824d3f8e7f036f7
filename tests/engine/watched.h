/* watched -- runs whose losses, norms, params and saved state are kept and compared, for the tests of
 * offload: a save in the background, params that are read while updates are pending; and runs on a
 * disk that fails. */
#ifndef TESTS_ENGINE_WATCHED_H
#define TESTS_ENGINE_WATCHED_H
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>

#include "base/input.h"
#include "base/output.h"
#include "engine/images.h"

enum { RUN_STEPS = 4, MIDDLE = 2 };

/* --- runs that are watched ------------------------------------------------------------------ */

struct watch {
    double loss[RUN_STEPS], norms[RUN_STEPS][2], noise[RUN_STEPS][2];
    struct image middle, end;
    float *params[2]; /* after one step, and at the end */
    int64_t count;
};

struct watched_job {
    struct rig_config config;
    struct watch *watch; /* of all ranks; the first one writes its numbers */
};

struct background {
    struct rig *rig;
    struct image *image;
};

static inline void *save_in_background(void *argument)
{
    struct background *job = argument;
    save_snapshot(job->rig, job->image);
    zero_snapshot_end(job->rig->zero);
    return NULL;
}

static inline void note_step(struct watched_job *job, struct rig *rig, int step)
{
    struct engine_result result = rig_step(rig, step);
    struct watch *watch = job->watch;
    if (job->config.rank > 0)
        return;
    watch->loss[step] = result.loss;
    watch->norms[step][0] = result.grad_norm, watch->norms[step][1] = result.meta_norm;
    watch->noise[step][0] = result.noise.square, watch->noise[step][1] = result.noise.trace;
}

static inline void note_params(struct watched_job *job, struct rig *rig, int which)
{
    int64_t count;
    float *params = rig_params(rig, &count); /* all ranks take part */
    if (job->config.rank > 0) {
        free(params);
        return;
    }
    job->watch->params[which] = params;
    job->watch->count = count;
}

/* The state after MIDDLE steps is saved by a thread while the next step runs. Params are read
 * while updates are still pending, and the run continues. */
static inline void *watch_rank(void *argument)
{
    struct watched_job *job = argument;
    struct watch *watch = job->watch;
    struct env env = testing_env(1);
    struct rig rig;
    int64_t allocations = 0;
    job->config.snapshot = true;
    assert_ok(rig_create(&env, job->config, &rig));
    for (int step = 0; step < RUN_STEPS; step++) {
        struct background background = {&rig, &watch->middle};
        pthread_t thread;
        if (step == MIDDLE) {
            assert_ok(zero_snapshot(rig.zero));
            assert_int_equal(pthread_create(&thread, NULL, save_in_background, &background), 0);
        }
        note_step(job, &rig, step);
        if (step == MIDDLE)
            assert_int_equal(pthread_join(thread, NULL), 0);
        if (step == 0) {
            note_params(job, &rig, 0);
            allocations = mem_allocation_count(env.mem);
        }
    }
    assert_int_equal(mem_allocation_count(env.mem), allocations);
    save_state(&rig, &watch->end);
    note_params(job, &rig, 1);
    rig_destroy(&rig);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
    return NULL;
}

static inline struct watch watch_run(struct rig_config config, int ranks)
{
    struct watch watch = {.middle.lock = PTHREAD_MUTEX_INITIALIZER,
                          .end.lock = PTHREAD_MUTEX_INITIALIZER};
    struct watched_job jobs[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        jobs[r] = (struct watched_job){.config = config, .watch = &watch};
    rig_run_ranks(watch_rank, jobs, ranks, sizeof *jobs);
    return watch;
}

static inline void watch_free(struct watch *watch)
{
    image_free(&watch->middle);
    image_free(&watch->end);
    free(watch->params[0]);
    free(watch->params[1]);
}

static inline bool same_image(const struct image *a, const struct image *b,
                              struct rig_config config)
{
    struct env env = testing_env(1);
    struct rig rig;
    bool same = true;
    config.offload = (struct zero_offload){0};
    assert_ok(rig_create(&env, config, &rig));
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < model_graph(rig.model)->tensor_count; t++) {
            struct zero_array array = zero_state_array(rig.zero, (enum zero_state)s, t);
            if (array.count > 0)
                same &= memcmp(a->arrays[s][t], b->arrays[s][t],
                               (size_t)array.count * dtype_bytes(array.type)) == 0;
        }
    rig_destroy(&rig);
    env_destroy(&env);
    return same;
}

static const char *const place_words[] = {"device", "host", "disk"};

static inline void fail_run(const char *what, struct rig_config c, int ranks)
{
    fail_msg("%s: state on %s, sums on %s, params on %s, share %g; stage %d, %d ranks, %d servers, "
             "groups of %d, "
             "tp %d, pp %d, %s, optimizer %d with %d groups, %d micro-batches, bucket %d%s",
             what, place_words[c.offload.optimizer], place_words[c.offload.grads],
             place_words[c.offload.params], c.offload.share, c.stage, ranks, c.servers, c.group,
             c.tp, c.pp, dtype_name(c.type), (int)c.optimizer, c.group_count, (int)c.micro_batches,
             (int)c.bucket, c.local ? ", local" : "");
}

/* One rank, or a TP group, without offload; `one` is its config. */
static inline void expect_same(const struct watch *plain, struct rig_config one,
                               struct rig_config config, int ranks)
{
    if (!testing_sampled())
        return;
    struct watch other = watch_run(config, ranks);
    size_t bytes = (size_t)plain->count * sizeof(float);
    if (memcmp(plain->loss, other.loss, sizeof other.loss) != 0)
        fail_run("other losses", config, ranks);
    if (memcmp(plain->norms, other.norms, sizeof other.norms) != 0)
        fail_run("other norms", config, ranks);
    if (config.noise && memcmp(plain->noise, other.noise, sizeof other.noise) != 0)
        fail_run("another noise scale", config, ranks);
    if (memcmp(plain->params[0], other.params[0], bytes) != 0)
        fail_run("other params after a step", config, ranks);
    if (memcmp(plain->params[1], other.params[1], bytes) != 0)
        fail_run("other params", config, ranks);
    one.hub = NULL;
    if (one.tp <= 1 && !same_image(&plain->middle, &other.middle, one))
        fail_run("other state in the background save", config, ranks);
    if (one.tp <= 1 && !same_image(&plain->end, &other.end, one))
        fail_run("other state", config, ranks);
    watch_free(&other);
}

static inline bool on_gpu(void)
{
    return strcmp(test_device(), "cpu") != 0;
}

/* --- a disk that fails ---------------------------------------------------------------------- */

struct fault_job {
    struct rig_config config;
    bool writes;
    long long at; /* calls up to the one that fails; 0: no fault */
    enum status st;
    char message[512];
    int steps;
};

static inline void *run_with_fault(void *argument)
{
    struct fault_job *job = argument;
    struct env env = testing_env(1);
    struct output_faults writes = {.error = ENOSPC};
    struct input_faults reads = {.error = EIO, .times = 1000000};
    struct rig rig;
    assert_ok(rig_create(&env, job->config, &rig));
    atomic_store(&writes.left, job->writes ? job->at : 0);
    atomic_store(&reads.left, job->at);
    if (job->at > 0 && job->writes)
        env.faults = &writes;
    else if (job->at > 0)
        env.input_faults = &reads;
    for (job->st = STATUS_OK; job->st == STATUS_OK && job->steps < RUN_STEPS;
         job->steps += job->st == STATUS_OK) {
        struct engine_result result;
        for (int64_t round = 0; round < engine_rounds(rig.engine); round++)
            if (engine_micro_batch(rig.engine, round) >= 0)
                rig_fill_round(&rig, job->steps, engine_micro_batch(rig.engine, round), round);
        job->st = engine_step(rig.engine, job->steps + 1, 1e-2, &result);
    }
    if (job->st == STATUS_OK)
        job->st = zero_settle(rig.zero);
    if (job->st != STATUS_OK && rig.comm)
        comm_abort(rig.comm, "a rank failed");
    const char *message = log_first_error(env.log);
    snprintf(job->message, sizeof job->message, "%s", message ? message : "");
    rig_destroy(&rig);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
    return NULL;
}

static inline int entries_in(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return count;
}

#endif
