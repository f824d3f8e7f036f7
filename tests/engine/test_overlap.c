/* Gathers overlap with compute if they begin one unit ahead, and do not if they begin when they are
 * needed. Two ranks, as threads.
 *
 * The order proves it, not the clock: rank 1 does not end a pass before rank 0 has ended the next
 * one, so it begins the gather for the pass after that only then. If rank 0 waited for that gather,
 * both would deadlock. */
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "testing.h"
#include "threads.h"

enum { UNITS = 8, RANKS = 2, STEPS = 2, WIDTH = 64, TOKENS = 4 };
enum { PASSES = 2 * UNITS - 1 };  /* forward, loss, backward */
enum { GATHERS = 2 * UNITS - 2 }; /* the last two units stay gathered: one gather each */
static const double pass_seconds = 0.004, gather_seconds = 0.002;

/* --- two ranks in step ---------------------------------------------------------------------- */

struct meeting { /* shared by the two ranks */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done;         /* passes that rank 0 has ended, over all steps */
    int patience;     /* seconds that rank 1 waits for rank 0; 0: it does not wait */
    bool stood_still; /* it has waited in vain: a deadlock */
};

struct sleeping_rank {
    struct comm_hub *hub;
    struct meeting *meeting;
    int rank, prefetch;
    double delay;
    int passes;             /* begun by this rank */
    double seconds, waited; /* of a step */
};

static _Thread_local struct sleeping_rank *me;

/* The last pass of a step does not wait: the ranks synchronize after it. */
static void wait_for_rank_0(void)
{
    struct meeting *m = me->meeting;
    struct timespec limit;
    if (me->rank == 0 || m->patience == 0 || me->passes % PASSES == 0)
        return;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += m->patience;
    pthread_mutex_lock(&m->lock);
    while (m->done <= me->passes && !m->stood_still)
        m->stood_still = pthread_cond_timedwait(&m->changed, &m->lock, &limit) != 0;
    pthread_mutex_unlock(&m->lock);
}

static void wake_rank_1(void)
{
    struct meeting *m = me->meeting;
    pthread_mutex_lock(&m->lock);
    m->done += me->rank == 0;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

/* --- a unit that sleeps --------------------------------------------------------------------- */

static void work(void)
{
    struct timespec span = {0, (long)(1e9 * pass_seconds)};
    me->passes++;
    nanosleep(&span, NULL);
    wait_for_rank_0();
    wake_rank_1();
}

static void sleeper_forward(const struct unit *unit, struct unit_run *run)
{
    (void)unit;
    work();
    run->out_residual = run->room;
    run->out_pending = NULL;
}

static void sleeper_backward(const struct unit *unit, struct unit_run *run)
{
    (void)unit;
    work();
    device_zero(run->stream, run->grads[0], WIDTH * sizeof(float));
}

static void sleeper_loss(const struct unit *unit, struct unit_run *run)
{
    sleeper_backward(unit, run);
    *run->loss = 1.0;
}

static int no_buffers(const struct unit *unit, const struct ops *ops, struct unit_shape shape,
                      struct unit_buffer *list)
{
    (void)unit, (void)ops, (void)shape, (void)list;
    return 0;
}

#define READS_AND_WRITES                                                                  \
    .reads = {[PASS_FORWARD] = 1, [PASS_BACKWARD] = 1, [PASS_LOSS] = 1, [PASS_EVAL] = 1}, \
    .writes = {[PASS_BACKWARD] = 1, [PASS_LOSS] = 1}, .buffers = no_buffers

static const struct unit_type sleeper = {
    .name = "sleeper",
    .run = {[PASS_FORWARD] = sleeper_forward, [PASS_BACKWARD] = sleeper_backward},
    READS_AND_WRITES};
static const struct unit_type last_sleeper = {
    .name = "last sleeper",
    .run = {[PASS_LOSS] = sleeper_loss, [PASS_EVAL] = sleeper_loss},
    READS_AND_WRITES};

struct dormitory {
    struct unit_tensor tensors[UNITS];
    struct unit_param params[UNITS];
    struct unit_piece pieces[UNITS];
    struct unit units[UNITS];
    struct unit_graph graph;
};

static void fill_dormitory(struct dormitory *d)
{
    *d = (struct dormitory){0};
    for (int u = 0; u < UNITS; u++) {
        d->tensors[u] = (struct unit_tensor){.dims = 1, .shape = {WIDTH}, .init = INIT_ONE};
        d->params[u] = (struct unit_param){.first_tensor = u, .tensor_count = 1, .piece = u};
        d->pieces[u] = (struct unit_piece){.first_param = u, .param_count = 1};
        d->units[u] = (struct unit){
            .type = u < UNITS - 1 ? &sleeper : &last_sleeper, .use_count = 1, .uses = {u}};
        snprintf(d->tensors[u].name, UNIT_NAME, "tensor %d", u);
        snprintf(d->pieces[u].name, UNIT_NAME, "unit %d", u);
        snprintf(d->units[u].name, UNIT_NAME, "unit %d", u);
    }
    d->graph = (struct unit_graph){.tensors = d->tensors,
                                   .params = d->params,
                                   .pieces = d->pieces,
                                   .units = d->units,
                                   .tensor_count = UNITS,
                                   .param_count = UNITS,
                                   .piece_count = UNITS,
                                   .unit_count = UNITS,
                                   .stream_width = WIDTH,
                                   .vocab = 2,
                                   .context = TOKENS};
}

/* --- a rank --------------------------------------------------------------------------------- */

static double run_steps(struct engine *engine, int steps)
{
    struct engine_result result;
    double start = clock_seconds();
    for (int step = 0; step < steps; step++)
        assert_ok(engine_step(engine, step + 1, 1e-3, &result));
    return (clock_seconds() - start) / steps;
}

static void *run_rank(void *argument)
{
    me = argument;
    struct env env = testing_env(1);
    const struct comm_config config = {.backend = "threads", .timeout = 60};
    struct zero_config store = {
        .optimizer.eps = 1e-8, .micro_batches = RANKS, .stage = 3, .prefetch = me->prefetch};
    struct engine_config settings = {.micro_batch = 1, .tokens = TOKENS, .micro_batches = RANKS};
    struct dormitory dormitory;
    struct device *device;
    struct comm *comm;
    struct ops *ops;
    struct stream *stream;
    struct zero *zero;
    struct engine *engine;
    fill_dormitory(&dormitory);
    assert_ok(device_create(&env, "cpu", 0, &device));
    assert_ok(comm_join(me->hub, me->rank, &config, device, &comm));
    assert_ok(ops_create(device, "cpu", DTYPE_F32, &ops));
    assert_ok(stream_create(device, "compute", &stream));
    assert_ok(zero_create(ops, stream, comm, &dormitory.graph, &store, &zero));
    assert_ok(engine_create(ops, stream, &dormitory.graph, zero, &settings, &engine));
    assert_ok(zero_init(zero, 1));
    zero_slow_gathers(zero, me->delay);
    double before = zero_traffic(zero).waited;
    me->seconds = run_steps(engine, STEPS);
    me->waited = (zero_traffic(zero).waited - before) / STEPS;
    engine_destroy(engine);
    zero_destroy(zero);
    stream_destroy(stream);
    comm_destroy(comm);
    ops_destroy(ops);
    device_destroy(device);
    env_destroy(&env);
    return NULL;
}

static struct sleeping_rank run(int prefetch, double delay, struct meeting *meeting)
{
    struct env env = testing_env(1);
    struct comm_hub *hub;
    struct sleeping_rank ranks[RANKS];
    assert_ok(comm_hub_create(&env, RANKS, &hub));
    pthread_mutex_init(&meeting->lock, NULL);
    pthread_cond_init(&meeting->changed, NULL);
    for (int r = 0; r < RANKS; r++)
        ranks[r] = (struct sleeping_rank){
            .hub = hub, .meeting = meeting, .rank = r, .prefetch = prefetch, .delay = delay};
    threads_run(run_rank, ranks, RANKS, sizeof *ranks);
    pthread_cond_destroy(&meeting->changed);
    pthread_mutex_destroy(&meeting->lock);
    comm_hub_destroy(hub);
    env_destroy(&env);
    assert_int_equal(ranks[0].passes, STEPS * PASSES);
    print_message("prefetch %d: a step %.0f ms, waited %.0f ms\n", prefetch, 1e3 * ranks[0].seconds,
                  1e3 * ranks[0].waited);
    return ranks[0];
}

/* The time of a pass does not count as waiting for the gather that overlaps with it. */
static void test_prefetch_hides_gathers(void **state)
{
    (void)state;
    struct meeting meeting = {.patience = 60};
    struct sleeping_rank ahead = run(1, 0, &meeting);
    assert_false(meeting.stood_still);
    assert_true(ahead.waited <= ahead.seconds - PASSES * pass_seconds);
}

/* Without prefetch compute waits for every gather: both ranks stand still, and all delays add up.
 */
static void test_without_prefetch_nothing_overlaps(void **state)
{
    (void)state;
    struct meeting meeting = {.patience = 1}, none = {0};
    run(0, 0, &meeting);
    assert_true(meeting.stood_still);
    struct sleeping_rank late = run(0, gather_seconds, &none);
    assert_true(late.seconds >= PASSES * pass_seconds + GATHERS * gather_seconds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefetch_hides_gathers),
        cmocka_unit_test(test_without_prefetch_nothing_overlaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
