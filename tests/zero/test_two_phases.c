/* Frozen pieces, gates, limits and two phases, with a model that has no arithmetic: its gradients
 * are random numbers. Ranks are threads of one process. */
#include "testing.h"

#include <math.h>

#include "base/rng.h"
#include "threads.h"
#include "zero/zero.h"

enum { STEPS = 3, MICRO_BATCHES = 4, MOST_RANKS = 6, STATISTICS = 16, GATE = 3, SEED = 11 };
static const double CLIP = 4.0, META_CLIP = 0.7, LR = 0.05, DECAY = 0.1;

/* --- the model -------------------------------------------------------------------------------- */

/* Rows of 37 elements are cut by shards, which end at multiples of 64. */
enum { WEIGHT, BIAS, COST, TABLE, PROTO, MAP, SHIFT, TENSORS };
static const struct unit_tensor tensors[TENSORS] = {
    [WEIGHT] = {"weight",
                2,
                {9, 37},
                .init = INIT_NORMAL,
                .init_scale = 1,
                .decay = true,
                .matrices = 1,
                .gated = true,
                .gate = GATE,
                .limit = 1},
    [BIAS] = {"bias", 1, {9}, .init = INIT_ONE, .gated = true, .gate = GATE, .limit = 1},
    [COST] = {"cost", 1, {70}, .init = INIT_ZERO, .phase = PHASE_META},
    [TABLE] = {"table", 2, {11, 23}, .init = INIT_NORMAL, .init_scale = 1, .limit = 1.5},
    [PROTO] = {"proto",
               2,
               {9, 30},
               .init = INIT_UNIFORM,
               .init_scale = 1,
               .decay = true,
               .matrices = 1,
               .phase = PHASE_META},
    [MAP] = {"map", 2, {31, 41}, .init = INIT_NORMAL, .init_scale = 1, .matrices = 1},
    [SHIFT] = {"shift", 1, {33}, .init = INIT_UNIFORM, .init_scale = 2},
};
/* Each tensor is a param. */
static const struct unit_param params[TENSORS] = {{WEIGHT, 1, 0}, {BIAS, 1, 0},  {COST, 1, 0},
                                                  {TABLE, 1, 1},  {PROTO, 1, 2}, {MAP, 1, 3},
                                                  {SHIFT, 1, 3}};
enum { PIECES = 4, FROZEN = 3 };
static const struct unit_piece pieces[PIECES] = {
    {"body", WEIGHT, 3}, {"table", TABLE, 1}, {"proto", PROTO, 1}, {"frozen", MAP, 2}};
static const bool frozen[TENSORS] = {[MAP] = true, [SHIFT] = true};

static void no_pass(const struct unit *unit, struct unit_run *run)
{
    (void)unit, (void)run;
}

/* The body does not write its uses 5 and 6; its backward pass does not read `proto`. */
static const struct unit_type body = {
    .name = "body",
    .reads = {[PASS_FORWARD] = UNIT_ALL_USES, [PASS_BACKWARD] = ~(1u << PROTO)},
    .writes = {[PASS_BACKWARD] = ~(1u << MAP | 1u << SHIFT)},
    .run = {[PASS_FORWARD] = no_pass, [PASS_BACKWARD] = no_pass}};
static const struct unit_type head = {.name = "head",
                                      .reads = {[PASS_LOSS] = UNIT_ALL_USES},
                                      .writes = {[PASS_LOSS] = UNIT_ALL_USES},
                                      .run = {[PASS_LOSS] = no_pass}};
/* `table` is tied: both units write its gradient. */
static const struct unit units[] = {
    {.name = "body",
     .type = &body,
     .use_count = TENSORS,
     .uses = {WEIGHT, BIAS, COST, TABLE, PROTO, MAP, SHIFT}},
    {.name = "head", .type = &head, .use_count = 1, .uses = {TABLE}},
};
static const struct unit_graph graph = {.tensors = tensors,
                                        .params = params,
                                        .pieces = pieces,
                                        .units = units,
                                        .tensor_count = TENSORS,
                                        .param_count = TENSORS,
                                        .piece_count = PIECES,
                                        .unit_count = 2,
                                        .stream_width = 1,
                                        .statistics = STATISTICS};

/* Element e of the gradient of a tensor by unit u: sums leave the limits, single ones do not. */
static float gradient_of(int64_t step, int64_t m, int u, int tensor, int64_t e)
{
    struct rng rng = rng_stream((uint64_t)(step * 100 + m * 2 + u), tensors[tensor].name);
    return (float)(1.6 * rng_uniform(rng, (uint64_t)e) - 0.8);
}

/* The summed statistic: about half of the gates are open; one is exactly 0, which is closed. */
static float statistic_of(int64_t step, int i)
{
    double value = rng_uniform(rng_stream(SEED, "statistic"), (uint64_t)(step * STATISTICS + i));
    return i == GATE + 4 ? 0.0f : (float)(value - 0.5);
}

/* --- runs ------------------------------------------------------------------------------------- */

/* Whole arrays of the state, as they are saved. */
struct saved {
    unsigned char bytes[ZERO_STATES][TENSORS][31 * 41 * sizeof(float)];
    int times[ZERO_STATES][TENSORS][31 * 41]; /* how often each element was saved */
};

struct layout {
    int ranks, stage, servers, group;
    enum dtype type;
    enum optimizer_kind optimizer;
    bool stochastic, local;
};

struct job {
    struct layout layout;
    int first, end; /* steps */
    bool poisoned;  /* the gradient of `bad` has a NaN, in step 0 */
    int bad;
    struct saved *from, *to; /* shared by all ranks; NULL: none */
    struct comm_hub *hub;
    int rank;
    struct zero_verdict verdicts[STEPS];
    float values[TENSORS][31 * 41], gradients[TENSORS][31 * 41]; /* after the last step */
    struct traffic traffic; /* of the last step and the publishing of its params */
    size_t params, grads, optimizer;
    size_t contributions; /* of the workers to one reduce shard of the largest learned piece */
};

struct rank {
    struct job *job;
    struct zero *zero;
    struct stream *stream;
    struct unit_run run;
    float *values[TENSORS]; /* initial ones of frozen tensors */
};

static int64_t count_of(int t)
{
    return unit_tensor_whole(&tensors[t]);
}

/* Passes of both directions read the frozen params as they were at first. */
static void check_frozen(struct rank *r)
{
    assert_ok(stream_sync(r->stream));
    for (int t = 0; t < TENSORS; t++)
        if (frozen[t])
            assert_memory_equal(r->run.params[t], r->values[t],
                                (size_t)count_of(t) * sizeof(float));
}

static void run_pass(struct rank *r, int u, enum pass pass, int64_t step, int64_t round)
{
    const struct roster *roster = zero_roster(r->zero);
    int64_t m = roster_micro_batch(roster, MICRO_BATCHES, round);
    zero_acquire(r->zero, u, pass, &r->run);
    if (roster_is_worker(roster) && u == 0)
        check_frozen(r);
    if (m >= 0)
        zero_grads(r->zero, u, pass, round, &r->run);
    assert_ok(stream_sync(r->stream));
    for (int i = 0; m >= 0 && i < units[u].use_count; i++) {
        int t = units[u].uses[i];
        float *out = r->run.grads[i];
        assert_true(!out == (!unit_writes(&units[u], pass, i)));
        for (int64_t e = 0; out && e < count_of(t); e++)
            out[e] = gradient_of(step, m, u, t, e);
        if (out && r->job->poisoned && t == r->job->bad && m == 1)
            out[40] = NAN;
    }
    if (pass != PASS_FORWARD)
        zero_reduce(r->zero, u, pass, round, 0);
    zero_release(r->zero, u, pass);
}

static void run_step(struct rank *r, int64_t step, float *statistics)
{
    struct zero_verdict *verdict = &r->job->verdicts[step];
    float values[STATISTICS];
    for (int i = 0; i < STATISTICS; i++)
        values[i] = statistic_of(step, i);
    device_copy(r->stream, statistics, values, sizeof values);
    for (int64_t round = 0; round < roster_rounds(zero_roster(r->zero), MICRO_BATCHES); round++) {
        zero_walk(r->zero, 0, 2, WALK_BOTH);
        run_pass(r, 0, PASS_FORWARD, step, round);
        run_pass(r, 1, PASS_LOSS, step, round);
        run_pass(r, 0, PASS_BACKWARD, step, round);
    }
    assert_ok(zero_judge(r->zero, 1.0, statistics, verdict));
    for (int t = 0; t < TENSORS; t++)
        if (!frozen[t])
            assert_ok(zero_read_gradient(r->zero, t, 0, count_of(t), r->job->gradients[t]));
    assert_ok(zero_settle(r->zero));
    struct traffic before = zero_traffic(r->zero);
    if (!r->job->poisoned)
        assert_ok(zero_update(r->zero, step + 1, LR, 1.0, verdict));
    assert_ok(zero_settle(r->zero));
    r->job->traffic = zero_traffic(r->zero);
    for (int p = 0; p < TRAFFIC_PURPOSE_COUNT; p++)
        r->job->traffic.sent[p] -= before.sent[p];
}

static void load_state(struct rank *r, struct saved *from)
{
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < TENSORS; t++) {
            struct zero_array array = zero_state_array(r->zero, (enum zero_state)s, t);
            if (array.count > 0)
                assert_ok(zero_state_write(r->zero, (enum zero_state)s, t, 0, array.count,
                                           array.type, from->bytes[s][t]));
        }
    assert_ok(zero_publish(r->zero, r->job->first));
}

/* What this rank saves, read directly and from the snapshot. */
static void save_state(struct rank *r, struct saved *to)
{
    assert_ok(zero_snapshot(r->zero));
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < TENSORS; t++) {
            enum zero_state state = (enum zero_state)s;
            struct zero_array array = zero_state_array(r->zero, state, t);
            struct zero_ranges own = zero_state_to_save(r->zero, state, t, r->job->rank);
            size_t width = dtype_bytes(array.type);
            assert_true(!frozen[t] || array.count == (state == ZERO_MASTER ? count_of(t) : 0));
            for (int i = 0; i < own.count; i++) {
                int64_t first = own.at[i].first, count = own.at[i].count;
                void *out = to->bytes[s][t] + (size_t)first * width;
                assert_ok(zero_state_read(r->zero, state, t, first, count, out));
                assert_memory_equal(out, zero_snapshot_at(r->zero, state, t, first),
                                    (size_t)count * width);
                for (int64_t e = first; e < first + count; e++)
                    to->times[s][t][e]++;
            }
        }
}

static void run_steps(struct rank *r, struct device *device)
{
    float *statistics;
    assert_ok(device_alloc(device, MEM_OTHER, "statistics", STATISTICS * sizeof *statistics,
                           &statistics));
    assert_ok(zero_init(r->zero, SEED));
    if (r->job->from)
        load_state(r, r->job->from);
    for (int t = 0; t < TENSORS; t++) {
        r->values[t] = malloc((size_t)count_of(t) * sizeof(float));
        assert_ok(zero_read(r->zero, t, 0, count_of(t), r->values[t]));
    }
    for (int step = r->job->first; step < r->job->end; step++)
        run_step(r, step, statistics);
    for (int t = 0; t < TENSORS; t++) {
        assert_ok(zero_read(r->zero, t, 0, count_of(t), r->job->values[t]));
        bool same =
            memcmp(r->job->values[t], r->values[t], (size_t)count_of(t) * sizeof(float)) == 0;
        assert_int_equal(same, frozen[t] || r->job->poisoned);
        free(r->values[t]);
    }
    if (r->job->to)
        save_state(r, r->job->to);
    device_free(device, statistics);
}

static void find_contributions(void *user, const struct mem_line *line)
{
    if (strcmp(line->name, "contributions of the workers") == 0)
        *(size_t *)user = line->bytes;
}

static void *run_rank(void *argument)
{
    struct job *job = argument;
    const struct layout *l = &job->layout;
    struct env env = testing_env(1);
    struct rank r = {.job = job};
    struct device *device;
    struct ops *ops;
    struct comm *comm = NULL;
    const struct comm_config joins = {.backend = "threads", .timeout = 60};
    const struct zero_config config = {
        .optimizer = {.kind = l->optimizer, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
        .weight_decay = DECAY,
        .clip = CLIP,
        .meta_clip = META_CLIP,
        .micro_batches = MICRO_BATCHES,
        .stage = l->stage,
        .prefetch = l->ranks % 2,
        .servers = l->servers,
        .shard_group = l->group,
        .local = l->local,
        .type = l->type,
        .stochastic = l->stochastic,
        .seed = SEED,
        .snapshot = true};
    assert_ok(device_create(&env, "cpu", 0, &device));
    if (job->hub)
        assert_ok(comm_join(job->hub, job->rank, &joins, device, &comm));
    assert_ok(ops_create(device, "cpu", DTYPE_F32, &ops));
    assert_ok(stream_create(device, "compute", &r.stream));
    assert_ok(zero_create(ops, r.stream, comm, &graph, &config, &r.zero));
    job->params = mem_bytes(env.mem, MEM_PARAMS);
    job->grads = mem_bytes(env.mem, MEM_GRADS);
    job->optimizer = mem_bytes(env.mem, MEM_OPTIMIZER);
    mem_visit(env.mem, find_contributions, &job->contributions);
    run_steps(&r, device);
    zero_destroy(r.zero);
    stream_destroy(r.stream);
    comm_destroy(comm);
    ops_destroy(ops);
    device_destroy(device);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
    return NULL;
}

static struct job jobs[MOST_RANKS];

/* Run `job` on all ranks of its layout; they must agree. Returns the first. */
static const struct job *run(struct job job)
{
    struct env env = testing_env(1);
    struct comm_hub *hub = NULL;
    int ranks = job.layout.ranks;
    if (ranks > 1)
        assert_ok(comm_hub_create(&env, ranks, &hub));
    for (int rank = 0; rank < ranks; rank++) {
        jobs[rank] = job;
        jobs[rank].hub = hub;
        jobs[rank].rank = rank;
    }
    threads_run(run_rank, jobs, ranks, sizeof *jobs);
    for (int rank = 1; rank < ranks; rank++) {
        assert_memory_equal(jobs[rank].verdicts, jobs[0].verdicts, sizeof jobs->verdicts);
        assert_memory_equal(jobs[rank].values, jobs[0].values, sizeof jobs->values);
    }
    comm_hub_destroy(hub);
    env_destroy(&env);
    return jobs;
}

static struct job whole_run(struct layout layout)
{
    return (struct job){.layout = layout, .end = STEPS};
}

/* --- against a direct computation ------------------------------------------------------------- */

static float in_type(float value, enum dtype type)
{
    return type == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(value)) : value;
}

/* The gradient of a step after gate and limit. */
static float expected_gradient(int step, int t, int64_t e, enum dtype type)
{
    const struct unit_tensor *tensor = &tensors[t];
    int64_t columns = count_of(t) / tensor->shape[0];
    float sums[2] = {0, 0};
    for (int u = 0; u < (t == TABLE ? 2 : 1); u++)
        for (int m = 0; m < MICRO_BATCHES; m++)
            sums[u] += in_type(gradient_of(step, m, u, t, e), type);
    float sum = t == TABLE ? sums[0] + sums[1] : sums[0];
    if (tensor->gated && !(statistic_of(step, (int)(tensor->gate + e / columns)) > 0))
        return 0;
    float limit = tensor->limit > 0 ? (float)tensor->limit : INFINITY;
    return fminf(fmaxf(sum, -limit), limit);
}

static double expected_norm(int step, enum unit_phase phase, enum dtype type)
{
    double square_sum = 0;
    for (int t = 0; t < TENSORS; t++)
        for (int64_t e = 0; tensors[t].phase == phase && !frozen[t] && e < count_of(t); e++)
            square_sum += pow(expected_gradient(step, t, e, type), 2);
    return sqrt(square_sum);
}

static double factor_of(double clip, double norm)
{
    return clip < norm ? clip / (norm + 1e-6) : 1;
}

/* SGD without momentum: one line of arithmetic. */
static void compare_with_direct(const struct job *job, enum dtype type, const struct job *start)
{
    int closed = 0, limited = 0;
    for (int step = 0; step < STEPS; step++) {
        double main = expected_norm(step, PHASE_MAIN, type);
        double meta = expected_norm(step, PHASE_META, type);
        assert_true(fabs(job->verdicts[step].grad_norm - main) < 1e-12 * main);
        assert_true(fabs(job->verdicts[step].meta_norm - meta) < 1e-12 * meta);
        assert_true(main > CLIP && meta > META_CLIP); /* both are clipped */
        assert_int_equal(job->verdicts[step].bad_tensor, -1);
    }
    for (int t = 0; t < TENSORS; t++)
        for (int64_t e = 0; e < count_of(t); e++) {
            double value = start->values[t][e];
            for (int step = 0; step < STEPS && !frozen[t]; step++) {
                const struct zero_verdict *v = &job->verdicts[step];
                double factor = tensors[t].phase == PHASE_META ? factor_of(META_CLIP, v->meta_norm)
                                                               : factor_of(CLIP, v->grad_norm);
                double gradient = expected_gradient(step, t, e, type);
                value -= LR * (factor * gradient + (tensors[t].decay ? DECAY * value : 0));
            }
            assert_true(fabs(job->values[t][e] - value) < 1e-6);
            if (frozen[t])
                continue;
            float last = expected_gradient(STEPS - 1, t, e, type);
            assert_memory_equal(&job->gradients[t][e], &last, sizeof last);
            closed += last == 0;
            limited += fabsf(last) == (float)tensors[t].limit;
        }
    assert_true(closed > 60 && limited > 20); /* the test tests something */
}

static void test_direct(void **state)
{
    (void)state;
    static struct job start;
    for (int narrow = 0; narrow < 2; narrow++) {
        struct layout layout = {
            .ranks = 1, .type = narrow ? DTYPE_BF16 : DTYPE_F32, .optimizer = OPTIMIZER_SGD};
        struct job none = {.layout = layout, .poisoned = true, .bad = -1}; /* no steps */
        start = *run(none);
        compare_with_direct(run(whole_run(layout)), layout.type, &start);
        layout.ranks = 3;
        layout.stage = 3;
        compare_with_direct(run(whole_run(layout)), layout.type, &start);
    }
}

/* --- layouts ---------------------------------------------------------------------------------- */

static void compare(const struct job *plain, struct layout layout)
{
    const struct job *other = run(whole_run(layout));
    if (memcmp(plain->verdicts, other->verdicts, sizeof plain->verdicts) != 0 ||
        memcmp(plain->gradients, other->gradients, sizeof plain->gradients) != 0 ||
        memcmp(plain->values, other->values, sizeof plain->values) != 0)
        fail_msg("other bits: stage %d, %d ranks, %d servers, groups of %d, %s, %s", layout.stage,
                 layout.ranks, layout.servers, layout.group, dtype_name(layout.type),
                 optimizer_word(layout.optimizer));
}

static void compare_layouts(struct layout layout)
{
    static struct job plain;
    layout.ranks = 1;
    plain = *run(whole_run(layout));
    for (layout.stage = 0; layout.stage <= 3; layout.stage++) {
        for (layout.ranks = 2; layout.ranks <= 5; layout.ranks++)
            compare(&plain, layout);
        for (layout.servers = 1; layout.stage > 0 && layout.servers <= 2; layout.servers++) {
            layout.ranks = 2 + layout.servers;
            compare(&plain, layout);
        }
        layout.servers = 0;
        for (layout.group = 2; layout.stage > 0 && layout.group <= 3; layout.group++) {
            layout.ranks = 2 * layout.group;
            compare(&plain, layout);
        }
        layout.group = 0;
    }
}

static void test_layouts(void **state)
{
    (void)state;
    compare_layouts((struct layout){.type = DTYPE_F32});
    compare_layouts((struct layout){.type = DTYPE_BF16});
    compare_layouts((struct layout){.type = DTYPE_BF16, .stochastic = true});
}

static void test_optimizers(void **state)
{
    (void)state;
    static struct job plain;
    for (int kind = 0; kind < OPTIMIZER_KINDS; kind++)
        for (int stage = 1; stage <= 3; stage += 2) {
            struct layout layout = {.ranks = 1, .optimizer = (enum optimizer_kind)kind};
            plain = *run(whole_run(layout));
            layout.ranks = 3;
            layout.stage = stage;
            compare(&plain, layout);
        }
}

/* --- frozen values ---------------------------------------------------------------------------- */

/* They are rounded to nearest once, also where others are rounded at random. */
static void test_frozen_values(void **state)
{
    (void)state;
    static struct job wide;
    wide = *run(whole_run((struct layout){.ranks = 1, .type = DTYPE_F32}));
    for (int random = 0; random < 2; random++) {
        const struct job *narrow = run(whole_run(
            (struct layout){.ranks = 2, .stage = 1, .type = DTYPE_BF16, .stochastic = random}));
        for (int t = 0; t < TENSORS; t++)
            for (int64_t e = 0; frozen[t] && e < count_of(t); e++) {
                float rounded = in_type(wide.values[t][e], DTYPE_BF16);
                assert_memory_equal(&narrow->values[t][e], &rounded, sizeof rounded);
            }
    }
}

/* A run that stops after two steps and resumes in another layout has the same bits. */
static void test_resume(void **state)
{
    (void)state;
    static struct job plain;
    static struct saved saved;
    const struct layout layouts[] = {{.ranks = 1},
                                     {.ranks = 3, .stage = 3},
                                     {.ranks = 4, .stage = 1, .group = 2},
                                     {.ranks = 4, .stage = 2, .servers = 2}};
    enum { COUNT = sizeof layouts / sizeof *layouts };
    for (int kind = 0; kind < 2 * COUNT; kind++) {
        struct job first = {.layout = layouts[kind % COUNT], .end = 2, .to = &saved};
        struct job second = {
            .layout = layouts[(kind + 1) % COUNT], .first = 2, .end = STEPS, .from = &saved};
        first.layout.type = second.layout.type = kind < COUNT ? DTYPE_F32 : DTYPE_BF16;
        first.layout.optimizer = second.layout.optimizer =
            kind % 2 ? OPTIMIZER_ADAMW8BIT : OPTIMIZER_ADAMW;
        memset(&saved, 0, sizeof saved);
        plain = *run(whole_run(first.layout));
        run(first);
        for (int t = 0; t < TENSORS; t++)
            for (int64_t e = 0; e < count_of(t); e++) {
                assert_int_equal(saved.times[ZERO_MASTER][t][e], 1);
                assert_int_equal(saved.times[ZERO_MOMENTUM][t][e], !frozen[t]);
            }
        assert_memory_equal(run(second)->values, plain.values, sizeof plain.values);
    }
}

/* --- memory and traffic ----------------------------------------------------------------------- */

/* Elements of pieces with padding, where `owners` have equal parts. */
static size_t padded(bool of_frozen, int owners)
{
    size_t count = 0, unit = 64 * (size_t)owners;
    for (int i = 0; i < PIECES; i++) {
        size_t used = 0;
        for (int p = pieces[i].first_param; p < pieces[i].first_param + pieces[i].param_count; p++)
            used += ((size_t)count_of(p) + 63) / 64 * 64;
        count += (i == FROZEN) == of_frozen ? (used + unit - 1) / unit * unit : 0;
    }
    return count;
}

static void test_memory(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        size_t learned = padded(false, ranks), all = learned + padded(true, ranks);
        enum { BODY = 384 + 64 + 128 + 64 }; /* of two shards, weight, bias and cost with padding */
        size_t n = (size_t)ranks, uses = learned + ((11 * 23 + 63) / 64 * 64);
        const struct job *job = run(whole_run((struct layout){.ranks = ranks, .stage = 3}));
        assert_int_equal(job->params, 4 * all / n);
        assert_int_equal(job->grads, 4 * uses / n);
        assert_int_equal(job->optimizer, 8 * learned / n);
        assert_int_equal(job->contributions, ranks == 1 ? 0 : 4 * BODY);
        job = run(whole_run((struct layout){.ranks = ranks, .stage = 3, .type = DTYPE_BF16}));
        assert_int_equal(job->params, 2 * all / n);
        assert_int_equal(job->grads, 4 * uses / n);
        assert_int_equal(job->optimizer, (4 + 8) * learned / n);
    }
}

/* After an update the owners send the new params to the others, and nothing of frozen pieces. */
static void test_traffic(void **state)
{
    (void)state;
    const struct job *job = run(whole_run((struct layout){.ranks = 2, .stage = 1}));
    assert_int_equal(job->traffic.sent[TRAFFIC_GATHER], 4 * padded(false, 2) / 2);
    assert_int_equal(job->traffic.sent[TRAFFIC_REDUCE], 0);
}

/* --- gradients that are not finite ------------------------------------------------------------ */

static void test_bad_gradients(void **state)
{
    (void)state;
    static const int bad[] = {WEIGHT, COST, PROTO};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int ranks = 1; ranks <= 3; ranks += 2) {
            struct job job = {.layout = {.ranks = ranks, .stage = 2}, .end = 1};
            job.poisoned = true;
            job.bad = bad[i];
            const struct zero_verdict *v = &run(job)->verdicts[0];
            bool meta = tensors[bad[i]].phase == PHASE_META;
            assert_int_equal(isnan(v->grad_norm) != 0, !meta);
            assert_int_equal(isnan(v->meta_norm) != 0, meta);
            assert_int_equal(v->bad_tensor, bad[i]);
            assert_int_equal(v->bad_index, 40);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct),     cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_optimizers), cmocka_unit_test(test_frozen_values),
        cmocka_unit_test(test_resume),     cmocka_unit_test(test_memory),
        cmocka_unit_test(test_traffic),    cmocka_unit_test(test_bad_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
