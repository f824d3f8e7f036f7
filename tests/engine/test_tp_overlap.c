/* Collectives of TP groups overlap with compute: which operations run while a call is in flight,
 * that they really do (the other rank joins the call only when they are done), the same bits with
 * and without overlap, and that the time of these operations does not count as waiting. Two ranks,
 * as threads. */
#include "base/clock.h"
#include "engine/engine_impl.h"
#include "engine/ranks.h"
#include "ops/ops_impl.h"
#include "threads.h"

enum { TEAM = 2, MOST_OPS = 64 };
static const double patience = 120, slow_product = 0.010;

/* Tensor parallelism alone; with sequence parallelism and inputs kept, or gathered again. */
enum { PLAIN, SEQUENCE, REGATHER, MODES };

/* --- two ranks whose products are watched --------------------------------------------------- */

struct watched {
    char kind; /* x, w: gradient of a product's input, of its weight; a, n: attention's, norm's */
    uint32_t open; /* calls in flight when it begins */
};

struct meeting { /* shared by the two ranks */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int done;          /* operations that rank 0 has done */
    bool late;         /* rank 1 has waited for longer than it should */
    const char *gates; /* what is expected; NULL: rank 1 does not wait */
};

struct member {
    struct rig_config config;
    struct meeting *meeting;
    struct rig rig;
    const struct ops_backend *real;
    struct ops_backend hooked;
    struct watched ops[MOST_OPS];
    int count;
    double nap;             /* extra seconds of an operation that overlaps with a call */
    double napped;          /* in total */
    bool blocked;           /* nothing overlaps with compute */
    struct traffic traffic; /* of a step */
    double seconds;
    float *params;
    int64_t param_count;
};

static _Thread_local struct member *me;

/* Rank 1 joins a call only when rank 0 has done everything that is expected to overlap with it: the
 * operations marked 's' after the one at which the call begins. */
static void pass_gate(int op)
{
    struct meeting *m = me->meeting;
    struct timespec limit;
    int last = -1, at = 0;
    if (!m->gates || me->config.rank == 0)
        return;
    for (const char *p = m->gates; *p; p += strcspn(p, " "), p += strspn(p, " "), at++) {
        bool under = memchr(p, 's', strcspn(p, " ")) != NULL;
        if (at == op && under)
            return; /* the call has begun already */
        if (at > op && !under)
            break;
        if (at > op)
            last = at;
    }
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += (time_t)patience;
    pthread_mutex_lock(&m->lock);
    while (m->done <= last && !m->late)
        m->late = pthread_cond_timedwait(&m->changed, &m->lock, &limit) != 0;
    pthread_mutex_unlock(&m->lock);
}

static void watch(char kind)
{
    struct unit_side_stream *side_stream = me->rig.engine->side_stream;
    assert_true(me->count < MOST_OPS);
    pass_gate(me->count);
    uint32_t open = me->blocked ? 0 : side_stream->open;
    me->ops[me->count++] = (struct watched){kind, open};
    if (open != 0 && me->nap > 0) {
        threads_nap(me->nap);
        me->napped += me->nap;
    }
}

static void done(void)
{
    struct meeting *m = me->meeting;
    if (me->config.rank != 0)
        return;
    pthread_mutex_lock(&m->lock);
    m->done++;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static void dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
               const void *dy, const void *w, void *out)
{
    watch('x');
    me->real->linear_dx(ops, stream, l, rows, dy, w, out);
    done();
}

static void dx_dgelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                     const struct linear_dx_dgelu *a)
{
    watch('x');
    me->real->linear_dx_dgelu(ops, stream, l, rows, a);
    done();
}

static void dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
               const struct linear_dw *a)
{
    watch('w');
    me->real->linear_dw(ops, stream, l, rows, a);
    done();
}

static void norm_backward(struct ops *ops, struct stream *stream, struct norm norm, int64_t rows,
                          const struct norm_backward *a)
{
    watch('n');
    me->real->norm_backward(ops, stream, norm, rows, a);
    done();
}

static void attention_backward(struct ops *ops, struct stream *stream, struct attention a,
                               const struct attention_backward *b)
{
    watch('a');
    me->real->attention_backward(ops, stream, a, b);
    done();
}

static void hook(struct member *member)
{
    member->real = member->rig.ops->backend;
    member->hooked = *member->real;
    member->hooked.linear_dx = dx;
    member->hooked.linear_dx_dgelu = dx_dgelu;
    member->hooked.linear_dw = dw;
    member->hooked.norm_backward = norm_backward;
    member->hooked.attention_backward = attention_backward;
    member->rig.ops->backend = &member->hooked;
}

/* One step; operations take as long as the member says. */
static void *member_main(void *argument)
{
    struct env env = testing_env(1);
    me = argument;
    assert_ok(rig_create(&env, me->config, &me->rig));
    struct unit_side_stream *side_stream = me->rig.engine->side_stream;
    assert_non_null(side_stream);
    hook(me);
    if (me->blocked)
        me->rig.engine->side_stream = NULL;
    assert_ok(zero_settle(me->rig.zero));
    struct traffic before = engine_traffic(me->rig.engine);
    double start = clock_seconds();
    rig_step(&me->rig, 0);
    me->seconds = clock_seconds() - start;
    me->traffic = engine_traffic(me->rig.engine);
    traffic_add(&me->traffic, &before, -1);
    me->params = rig_params(&me->rig, &me->param_count);
    me->rig.engine->side_stream = side_stream;
    rig_destroy(&me->rig);
    env_destroy(&env);
    return NULL;
}

static struct rig_config tp_config(int llama, int mode, int layers)
{
    struct rig_config config = shared_config(llama);
    config.ops = "cpu";
    config.tokens = 12;
    config.micro_batches = 1;
    config.tp = TEAM;
    config.sequence = mode != PLAIN, config.regather = mode == REGATHER;
    config.model.layers = layers;
    return config;
}

/* The same settings for both; the caller frees the params of both. */
static void run_tp_group(const struct member *model, const char *gates, struct member *tp_group)
{
    struct meeting meeting = {.gates = gates};
    pthread_mutex_init(&meeting.lock, NULL);
    pthread_cond_init(&meeting.changed, NULL);
    for (int r = 0; r < TEAM; r++) {
        tp_group[r] = *model;
        tp_group[r].meeting = &meeting;
    }
    rig_run_ranks(member_main, tp_group, TEAM, sizeof *tp_group);
    assert_false(meeting.late);
    pthread_cond_destroy(&meeting.changed);
    pthread_mutex_destroy(&meeting.lock);
}

static void free_tp_group(struct member *tp_group)
{
    for (int r = 0; r < TEAM; r++)
        free(tp_group[r].params);
}

/* --- what runs under what ------------------------------------------------------------------- */

static void print_ops(const struct member *member, char *out, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < member->count; i++)
        used += (size_t)snprintf(out + used, bytes - used, "%s%c%s%s", i ? " " : "",
                                 member->ops[i].kind, member->ops[i].open & 1u ? "s" : "",
                                 member->ops[i].open & 2u ? "g" : "");
}

/* The loss, then one block from its MLP to its attention. s: the gradient of the stream is being
 * reduced or gathered; g: rows are being gathered again. */
static const char *const expected[2][MODES] = {
    {"x ws n w x x ws n x a x ws ws n", "x ws n w x x ws n x a x ws ws n",
     "x ws n wg xg xg ws n xg ag xg wsg ws n"},
    {"x ws n x x ws ws n x a x ws ws n", "x ws n x x ws n ws x a x ws ws n",
     "x ws n xg xg wsg ng ws xg ag xg wsg ws n"}};

/* Before each call rank 1 waits until rank 0 has done everything that must overlap: if rank 0
 * waited for the call, both would deadlock. */
static void test_products_under_calls(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int mode = 0; mode < MODES; mode++) {
            struct member model = {.config = tp_config(llama, mode, 1)}, tp_group[TEAM];
            run_tp_group(&model, expected[llama][mode], tp_group);
            for (int r = 0; r < TEAM; r++) {
                char found[MOST_OPS * 4];
                print_ops(&tp_group[r], found, sizeof found);
                assert_string_equal(found, expected[llama][mode]);
            }
            free_tp_group(tp_group);
        }
}

/* --- the same bits -------------------------------------------------------------------------- */

static void test_same_bits(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int mode = 0; mode < MODES; mode++) {
            struct member model = {.config = tp_config(llama, mode, 3), .blocked = true};
            struct member plain[TEAM], tp_group[TEAM];
            run_tp_group(&model, NULL, plain);
            model.blocked = false;
            for (int i = 0; i < 4; i++) {
                model.config.delays = i > 0 ? 2e-4 : 0;
                model.config.recompute = i % 3;
                run_tp_group(&model, NULL, tp_group);
                for (int r = 0; r < TEAM; r++)
                    assert_memory_equal(tp_group[r].params, plain[0].params,
                                        (size_t)plain[0].param_count * sizeof(float));
                free_tp_group(tp_group);
            }
            free_tp_group(plain);
        }
}

/* In pipelines: split backward passes, where backward-weight gathers rows again, and several chunks
 * per stage. */
static void test_pipelines(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int mode = llama ? SEQUENCE : PLAIN; mode < MODES; mode += 2 - llama) {
            struct rig_config config = tp_config(llama, mode, 3);
            config.micro_batches = MICRO_BATCHES;
            struct trace plain = run(config, TEAM);
            config.pp = 2;
            config.kind = TIMETABLE_ZERO_BUBBLE;
            config.delays = 2e-4;
            config.recompute = mode;
            compare(&plain, config, 2 * TEAM);
            config.kind = TIMETABLE_INTERLEAVED;
            config.chunks = 2;
            compare(&plain, config, 2 * TEAM);
            free(plain.params);
        }
}

/* --- what is counted as waiting -------------------------------------------------------------- */

/* The ranks take turns as above, so that each call lasts at least as long as the compute it
 * overlaps with. Only the rest of a call counts as waiting; where every call blocks, all of it
 * does. */
static void check_waited(int llama, int mode)
{
    struct member model = {.config = tp_config(llama, mode, 1), .nap = slow_product};
    struct member tp_group[TEAM], plain[TEAM];
    run_tp_group(&model, expected[llama][mode], tp_group);
    const struct traffic *t = &tp_group[0].traffic;
    assert_true(tp_group[0].napped >= 3 * slow_product);
    assert_true(t->tensor_waited > 0 &&
                t->tensor_waited <= tp_group[0].seconds - tp_group[0].napped);
    assert_true(t->in_flight == t->tensor_in_flight); /* only TP traffic exists */
    assert_true(t->waited >= 0.99 * t->tensor_waited);

    model.blocked = true;
    run_tp_group(&model, NULL, plain);
    assert_true(plain[0].traffic.tensor_waited >= 0.999 * plain[0].traffic.tensor_in_flight);
    print_message(
        "%s, mode %d: a step %.0f ms, %.0f ms of it under calls; %.0f ms among the ranks, "
        "waited %.0f ms\n",
        llama ? "llama" : "gpt2", mode, 1e3 * tp_group[0].seconds, 1e3 * tp_group[0].napped,
        1e3 * t->tensor_in_flight, 1e3 * t->tensor_waited);
    free_tp_group(tp_group);
    free_tp_group(plain);
}

static void test_hidden_time_is_not_waited(void **state)
{
    (void)state;
    check_waited(0, PLAIN);
    check_waited(1, REGATHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_under_calls),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_hidden_time_is_not_waited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
