/* Updates of ZeRO stage 0 are deferred until a piece is needed: whoever reads or writes params,
 * state or gradients must see them done. A model without arithmetic, whose gradients are random
 * numbers; ranks are threads of one process, compared with a single rank. */
#include "testing.h"

#include <pthread.h>
#include <time.h>

#include "base/rng.h"
#include "threads.h"
#include "zero/zero.h"

enum { RANKS = 2, SEED = 3, MOST = 150 };

/* --- the model -------------------------------------------------------------------------------- */

/* One piece per tensor, each with a part on both ranks. No pass reads `unread`, but its gradient is
 * written. `table` is tied. */
enum { TABLE, BIAS, MAP, UNREAD, TENSORS };
static const struct unit_tensor tensors[TENSORS] = {
    [TABLE] = {"table", 2, {11, 13}, .init = INIT_NORMAL, .init_scale = 1, .decay = true},
    [BIAS] = {"bias", 1, {70}, .init = INIT_ONE},
    [MAP] = {"map", 2, {10, 15}, .init = INIT_NORMAL, .init_scale = 1, .decay = true},
    [UNREAD] = {"unread", 1, {100}, .init = INIT_UNIFORM, .init_scale = 2},
};
static const struct unit_param params[TENSORS] = {
    {TABLE, 1, 0}, {BIAS, 1, 1}, {MAP, 1, 2}, {UNREAD, 1, 3}};
static const struct unit_piece pieces[TENSORS] = {
    {"table", TABLE, 1}, {"bias", BIAS, 1}, {"map", MAP, 1}, {"unread", UNREAD, 1}};

static void no_pass(const struct unit *unit, struct unit_run *run)
{
    (void)unit, (void)run;
}

enum { FIRST, MIDDLE, LAST, UNITS };
static const struct unit_type first = {
    .name = "first",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES, [PASS_BACKWARD] = UNIT_ALL_USES},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = no_pass, [PASS_BACKWARD] = no_pass}};
static const struct unit_type middle = {
    .name = "middle",
    .reads = {[PASS_FORWARD] = 1},
    .writes = {[PASS_BACKWARD] = UNIT_ALL_USES},
    .run = {[PASS_FORWARD] = no_pass, [PASS_BACKWARD] = no_pass}};
static const struct unit_type last = {.name = "last",
                                      .reads = {[PASS_LOSS] = UNIT_ALL_USES},
                                      .writes = {[PASS_LOSS] = UNIT_ALL_USES},
                                      .run = {[PASS_LOSS] = no_pass}};
static const struct unit units[UNITS] = {
    {.name = "first", .type = &first, .use_count = 2, .uses = {TABLE, BIAS}},
    {.name = "middle", .type = &middle, .use_count = 2, .uses = {MAP, UNREAD}},
    {.name = "last", .type = &last, .use_count = 1, .uses = {TABLE}},
};
static const struct unit_graph graph = {.tensors = tensors,
                                        .params = params,
                                        .pieces = pieces,
                                        .units = units,
                                        .tensor_count = TENSORS,
                                        .param_count = TENSORS,
                                        .piece_count = TENSORS,
                                        .unit_count = UNITS,
                                        .stream_width = 1};

static int64_t count_of(int t)
{
    return unit_tensor_whole(&tensors[t]);
}

static float gradient_of(int64_t step, int64_t m, int u, int tensor, int64_t e)
{
    struct rng rng = rng_stream((uint64_t)(step * 100 + m * UNITS + u), tensors[tensor].name);
    return (float)(2.0 * rng_uniform(rng, (uint64_t)e) - 1.0);
}

/* --- runs ------------------------------------------------------------------------------------- */

/* What is done right after an update. */
enum reader { READ, STATE, SNAPSHOT, PASSES, WRITE, SETTLE, NOTHING, READERS };

struct setting {
    enum reader reader;
    int64_t micro_batches; /* 1: one rank is idle */
    enum dtype type;
    bool stochastic;
    bool skip_middle; /* in the second step, no pass of the middle unit runs */
};

/* Rank 1 begins its first update only when rank 0 has ended its own. */
struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool updated, stood_still;
};

struct job {
    struct setting setting;
    struct comm_hub *hub;    /* NULL: one rank */
    struct meeting *meeting; /* NULL: the ranks do not meet */
    int rank;
    float seen[2][TENSORS][MOST]; /* by the reader: masters or params, and momenta */
    float values[TENSORS][MOST];  /* after the last step */
};

static struct job jobs[RANKS];
static float snapshots[TENSORS][MOST]; /* each rank writes what it saves */

struct rank {
    struct job *job;
    struct zero *zero;
    struct stream *stream;
    struct unit_run run;
};

static void run_pass(struct rank *r, int u, enum pass pass, int64_t step, int64_t round)
{
    int64_t m = roster_micro_batch(zero_roster(r->zero), r->job->setting.micro_batches, round);
    bool writes = pass != PASS_FORWARD;
    if (m >= 0 && writes)
        zero_grads(r->zero, u, pass, round, &r->run);
    zero_acquire(r->zero, u, pass, &r->run);
    assert_ok(stream_sync(r->stream));
    for (int i = 0; m >= 0 && writes && i < units[u].use_count; i++) {
        float *out = r->run.grads[i];
        for (int64_t e = 0; e < count_of(units[u].uses[i]); e++)
            out[e] = gradient_of(step, m, u, units[u].uses[i], e);
    }
    zero_release(r->zero, u, pass);
    if (writes)
        zero_reduce(r->zero, u, pass, round, 0);
}

/* Gradients of this step arrive before the verdict, also where this rank is idle: an update of the
 * step before that is still pending would use them. */
static void run_step(struct rank *r, int64_t step, bool skip_middle)
{
    const struct timespec pause = {0, 5000000};
    struct zero_verdict verdict;
    int64_t micro_batches = r->job->setting.micro_batches;
    for (int64_t round = 0; round < roster_rounds(zero_roster(r->zero), micro_batches); round++) {
        zero_walk(r->zero, 0, UNITS, WALK_BOTH);
        run_pass(r, FIRST, PASS_FORWARD, step, round);
        if (!skip_middle)
            run_pass(r, MIDDLE, PASS_FORWARD, step, round);
        run_pass(r, LAST, PASS_LOSS, step, round);
        if (!skip_middle)
            run_pass(r, MIDDLE, PASS_BACKWARD, step, round);
        run_pass(r, FIRST, PASS_BACKWARD, step, round);
    }
    nanosleep(&pause, NULL);
    assert_ok(zero_judge(r->zero, 1.0, NULL, &verdict));
    assert_ok(zero_update(r->zero, step + 1, 0.05, 1.0, &verdict));
}

/* The params that passes read; none of `unread`. */
static void read_passes(struct rank *r)
{
    zero_walk(r->zero, 0, UNITS, WALK_FORWARD);
    for (int u = 0; u < UNITS; u++) {
        enum pass pass = u == LAST ? PASS_LOSS : PASS_FORWARD;
        zero_acquire(r->zero, u, pass, &r->run);
        assert_ok(stream_sync(r->stream));
        for (int i = 0; i < units[u].use_count; i++)
            if (r->run.params[i])
                memcpy(r->job->seen[0][units[u].uses[i]], r->run.params[i],
                       (size_t)count_of(units[u].uses[i]) * sizeof(float));
        zero_release(r->zero, u, pass);
    }
}

static void read_snapshot(struct rank *r)
{
    assert_ok(zero_snapshot(r->zero));
    for (int t = 0; t < TENSORS; t++) {
        struct zero_ranges own = zero_state_to_save(r->zero, ZERO_MASTER, t, r->job->rank);
        for (int i = 0; i < own.count; i++)
            memcpy(snapshots[t] + own.at[i].first,
                   zero_snapshot_at(r->zero, ZERO_MASTER, t, own.at[i].first),
                   (size_t)own.at[i].count * sizeof(float));
    }
}

static void read_all(struct rank *r, float values[TENSORS][MOST])
{
    for (int t = 0; t < TENSORS; t++)
        assert_ok(zero_read(r->zero, t, 0, count_of(t), values[t]));
}

static void read_state(struct rank *r)
{
    for (int t = TENSORS - 1; t >= 0; t--)
        for (int s = ZERO_MASTER; s <= ZERO_MOMENTUM; s++) {
            int64_t count = zero_state_array(r->zero, (enum zero_state)s, t).count;
            if (count > 0)
                assert_ok(
                    zero_state_read(r->zero, (enum zero_state)s, t, 0, count, r->job->seen[s][t]));
        }
}

static void read_after_update(struct rank *r)
{
    const float written = 7.0f;
    switch (r->job->setting.reader) {
    case READ: read_all(r, r->job->seen[0]); break;
    case STATE: read_state(r); break;
    case SNAPSHOT: read_snapshot(r); break;
    case PASSES: read_passes(r); break;
    case WRITE:
        assert_ok(zero_write(r->zero, MAP, 5, 1, &written));
        assert_ok(zero_publish(r->zero, 1));
        break;
    case SETTLE: assert_ok(zero_settle(r->zero)); break;
    default: break;
    }
}

static void wait_for_rank_0(struct meeting *m)
{
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += 60;
    pthread_mutex_lock(&m->lock);
    while (!m->updated && !m->stood_still)
        m->stood_still = pthread_cond_timedwait(&m->changed, &m->lock, &limit) != 0;
    pthread_mutex_unlock(&m->lock);
}

static void wake_rank_1(struct meeting *m)
{
    pthread_mutex_lock(&m->lock);
    m->updated = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static void run_steps(struct rank *r)
{
    struct job *job = r->job;
    assert_ok(zero_init(r->zero, SEED));
    if (job->hub)
        zero_slow_gathers(r->zero, 0.002);
    run_step(r, 0, false);
    read_after_update(r);
    run_step(r, 1, job->setting.skip_middle);
    run_step(r, 2, false);
    read_all(r, job->values);
}

/* A finite verdict of zero gradients: no pass runs. */
static void meet_in_update(struct rank *r)
{
    struct meeting *m = r->job->meeting;
    struct zero_verdict verdict;
    assert_ok(zero_init(r->zero, SEED));
    assert_ok(zero_judge(r->zero, 1.0, NULL, &verdict));
    if (r->job->rank == 1)
        wait_for_rank_0(m);
    assert_ok(zero_update(r->zero, 1, 0.05, 1.0, &verdict));
    if (r->job->rank == 0)
        wake_rank_1(m);
    read_all(r, r->job->values);
}

static void *run_rank(void *argument)
{
    struct job *job = argument;
    const struct zero_group groups[] = {
        {.match = "bias", .lr_mul = 0.5, .optimizer = {.kind = OPTIMIZER_SGD, .momentum = 0.9}}};
    const struct zero_config config = {
        .optimizer = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
        .weight_decay = 0.1,
        .groups = groups,
        .group_count = 1,
        .clip = 1.0,
        .micro_batches = job->setting.micro_batches,
        .stage = 0,
        .type = job->setting.type,
        .stochastic = job->setting.stochastic,
        .seed = SEED,
        .snapshot = true};
    const struct comm_config joins = {.backend = "threads", .timeout = 60};
    struct env env = testing_env(1);
    struct rank r = {.job = job};
    struct device *device;
    struct ops *ops;
    struct comm *comm = NULL;
    assert_ok(device_create(&env, "cpu", 0, &device));
    if (job->hub)
        assert_ok(comm_join(job->hub, job->rank, &joins, device, &comm));
    assert_ok(ops_create(device, "cpu", DTYPE_F32, &ops));
    assert_ok(stream_create(device, "compute", &r.stream));
    assert_ok(zero_create(ops, r.stream, comm, &graph, &config, &r.zero));
    if (job->meeting)
        meet_in_update(&r);
    else
        run_steps(&r);
    zero_destroy(r.zero);
    stream_destroy(r.stream);
    comm_destroy(comm);
    ops_destroy(ops);
    device_destroy(device);
    env_destroy(&env);
    return NULL;
}

static void run(struct setting setting, int ranks, struct meeting *meeting)
{
    struct env env = testing_env(1);
    struct comm_hub *hub = NULL;
    if (ranks > 1)
        assert_ok(comm_hub_create(&env, ranks, &hub));
    memset(snapshots, 0, sizeof snapshots);
    for (int rank = 0; rank < ranks; rank++)
        jobs[rank] = (struct job){.setting = setting, .hub = hub, .meeting = meeting, .rank = rank};
    threads_run(run_rank, jobs, ranks, sizeof *jobs);
    comm_hub_destroy(hub);
    env_destroy(&env);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void compare(struct setting setting)
{
    static struct job plain;
    static float plain_snapshots[TENSORS][MOST];
    run(setting, 1, NULL);
    plain = jobs[0];
    memcpy(plain_snapshots, snapshots, sizeof snapshots);
    run(setting, RANKS, NULL);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_memory_equal(plain.seen, jobs[rank].seen, sizeof plain.seen);
        assert_memory_equal(plain.values, jobs[rank].values, sizeof plain.values);
    }
    assert_memory_equal(plain_snapshots, snapshots, sizeof snapshots);
}

/* One round and two; with an idle rank in the only and in the last one. With one round, sums are
 * in the memory of the gradients. */
static void test_readers_see_the_update(void **state)
{
    (void)state;
    for (int reader = 0; reader < READERS; reader++)
        for (int64_t micro_batches = 1; micro_batches <= 4; micro_batches++) {
            compare(
                (struct setting){.reader = (enum reader)reader, .micro_batches = micro_batches});
            compare((struct setting){.reader = (enum reader)reader,
                                     .micro_batches = micro_batches,
                                     .type = DTYPE_BF16,
                                     .stochastic = true});
        }
}

/* The sums of the skipped unit are those of the step before, on one rank as on two. */
static void test_unit_without_passes_is_updated(void **state)
{
    (void)state;
    for (int64_t micro_batches = 2; micro_batches <= 4; micro_batches += 2)
        compare((struct setting){
            .reader = NOTHING, .micro_batches = micro_batches, .skip_middle = true});
}

/* The order proves it, not the clock: the sums of rank 1 are sent after the update of rank 0 has
 * returned. */
static void test_update_does_not_wait_for_sums(void **state)
{
    (void)state;
    struct meeting meeting = {.updated = false};
    pthread_mutex_init(&meeting.lock, NULL);
    pthread_cond_init(&meeting.changed, NULL);
    run((struct setting){.micro_batches = 2}, RANKS, &meeting);
    pthread_cond_destroy(&meeting.changed);
    pthread_mutex_destroy(&meeting.lock);
    assert_false(meeting.stood_still);
    assert_memory_equal(jobs[0].values, jobs[1].values, sizeof jobs[0].values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers_see_the_update),
        cmocka_unit_test(test_unit_without_passes_is_updated),
        cmocka_unit_test(test_update_does_not_wait_for_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
