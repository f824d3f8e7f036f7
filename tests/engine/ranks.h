/* ranks -- runs the same small training on one rank or several, as threads of one process, and
 * compares the bits of two runs. */
#ifndef TESTS_ENGINE_RANKS_H
#define TESTS_ENGINE_RANKS_H
#include "engine/rig.h"

enum { STEPS = 3, MICRO_BATCHES = 5, EVALUATED = 8, MOST_RANKS = 16 };

struct trace {
    double loss[STEPS], norm[STEPS], meta_norm[STEPS];
    double noise[STEPS][2]; /* square and trace */
    double eval;            /* sum of the losses of EVALUATED micro-batches, after the steps */
    float *params;
    int64_t count;
    size_t state;           /* bytes of params, grads and optimizer of rank 0 after start-up */
    struct traffic traffic; /* of all steps; the publishing of params after the last may be
                                    missing */
    struct traffic settled; /* the same with the evaluation, when nothing is in flight */
};

struct rank_job {
    struct rig_config config;
    struct trace trace;
};

/* As an evaluation does: as many rounds at once as engine_eval_rounds allows. */
static inline double evaluate(struct rig *rig)
{
    const struct roster *roster = engine_roster(rig->engine);
    int64_t rounds = engine_eval_rounds(rig->engine);
    double sum = 0, labels = 0;
    for (int64_t first = 0; first < EVALUATED; first += rounds * roster->workers) {
        int64_t left = EVALUATED - first, most = rounds * roster->workers;
        int64_t count = left < most ? left : most;
        for (int64_t round = 0; round < rounds; round++) {
            int64_t m = roster_micro_batch(roster, count, round);
            if (m >= 0)
                rig_fill_round(rig, STEPS, first + m, round);
        }
        assert_ok(engine_eval(rig->engine, count, &sum, &labels));
    }
    assert_true(labels > 0);
    return sum;
}

static inline void *run_rank(void *argument)
{
    struct rank_job *job = argument;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, job->config, &rig));
    job->trace.state = mem_bytes(env.mem, MEM_PARAMS) + mem_bytes(env.mem, MEM_GRADS) +
                       mem_bytes(env.mem, MEM_OPTIMIZER);
    int64_t allocations = 0;
    for (int step = 0; step < STEPS; step++) {
        struct engine_result result = rig_step(&rig, step);
        job->trace.loss[step] = result.loss;
        job->trace.norm[step] = result.grad_norm;
        job->trace.meta_norm[step] = result.meta_norm;
        job->trace.noise[step][0] = result.noise.square;
        job->trace.noise[step][1] = result.noise.trace;
        if (step == 0)
            allocations = mem_allocation_count(env.mem);
    }
    job->trace.traffic = zero_traffic(rig.zero);
    job->trace.eval = evaluate(&rig);
    assert_int_equal(mem_allocation_count(env.mem), allocations);
    job->trace.params = rig_params(&rig, &job->trace.count);
    assert_ok(zero_settle(rig.zero));
    job->trace.settled = zero_traffic(rig.zero);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

/* All ranks must see the same results; returns those of the first. */
static inline struct trace run(struct rig_config config, int ranks)
{
    struct rank_job jobs[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        jobs[r] = (struct rank_job){.config = config};
    rig_run_ranks(run_rank, jobs, ranks, sizeof *jobs);
    for (int r = 1; r < ranks; r++) {
        assert_memory_equal(jobs[0].trace.loss, jobs[r].trace.loss, sizeof jobs[r].trace.loss);
        assert_memory_equal(&jobs[0].trace.eval, &jobs[r].trace.eval, sizeof(double));
        assert_memory_equal(jobs[0].trace.norm, jobs[r].trace.norm, sizeof jobs[r].trace.norm);
        assert_memory_equal(jobs[0].trace.meta_norm, jobs[r].trace.meta_norm,
                            sizeof jobs[r].trace.meta_norm);
        assert_memory_equal(jobs[0].trace.noise, jobs[r].trace.noise, sizeof jobs[r].trace.noise);
        assert_memory_equal(jobs[0].trace.params, jobs[r].trace.params,
                            (size_t)jobs[0].trace.count * sizeof(float));
        free(jobs[r].trace.params);
    }
    return jobs[0].trace;
}

static inline struct rig_config base_config(int llama)
{
    return (struct rig_config){.model = llama ? rig_llama() : rig_gpt2(),
                               .batch = 1,
                               .tokens = 11,
                               .micro_batches = MICRO_BATCHES,
                               .noise = true,
                               .clip = 1.0};
}

/* Heads and widths that four TP ranks divide and a vocabulary that they do not divide evenly; and
 * the settings of a pipeline. */
static inline struct rig_config shared_config(int llama)
{
    struct rig_config config = base_config(llama);
    config.chunks = 1;
    config.kind = TIMETABLE_1F1B;
    if (!llama) {
        config.model.heads = config.model.kv_heads = 4;
        config.model.width = 40;
        config.model.head_width = 10;
    }
    return config;
}

static inline void compare(const struct trace *plain, struct rig_config config, int ranks)
{
    if (!testing_sampled())
        return;
    struct trace other = run(config, ranks);
    if (memcmp(plain->loss, other.loss, sizeof other.loss) != 0 ||
        memcmp(plain->norm, other.norm, sizeof other.norm) != 0 ||
        memcmp(plain->meta_norm, other.meta_norm, sizeof other.meta_norm) != 0 ||
        (config.noise && memcmp(plain->noise, other.noise, sizeof other.noise) != 0) ||
        memcmp(&plain->eval, &other.eval, sizeof other.eval) != 0 ||
        memcmp(plain->params, other.params, (size_t)other.count * sizeof(float)) != 0)
        fail_msg("other bits: tp %d, pipeline of %d x %d, kind %d; stage %d, %d ranks, %d servers, "
                 "groups "
                 "of %d, prefetch %d, recompute "
                 "%d, %s, sums %s%s",
                 config.tp, config.pp, config.chunks, config.kind, config.stage, ranks,
                 config.servers, config.group, config.prefetch, config.recompute,
                 dtype_name(config.type), dtype_name(config.sum_type),
                 config.local ? ", local" : "");
    free(other.params);
}

/* Runs with config.local on one number of workers have the same bits, whatever the ZeRO stage,
 * servers, shard groups and pipeline. Returns the plain one, of ZeRO stage 0. */
static inline struct trace compare_local(struct rig_config config, int workers)
{
    config.local = true;
    struct trace plain = run(config, workers);
    for (int stage = 1; stage <= 3; stage++) {
        struct rig_config other = config;
        other.stage = stage;
        other.recompute = stage - 1;
        compare(&plain, other, workers);
        other.delays = 1e-4;
        other.servers = stage == 2 ? 2 : 1;
        compare(&plain, other, workers + other.servers);
        other.servers = 0;
        other.group = workers == 4 ? 2 : 1;
        compare(&plain, other, workers);
        other = config;
        other.stage = stage;
        other.pp = 2, other.chunks = 1;
        other.kind = stage == 3 ? TIMETABLE_ZERO_BUBBLE : TIMETABLE_1F1B;
        compare(&plain, other, 2 * workers);
        other.servers = 1;
        compare(&plain, other, 2 * (workers + 1));
    }
    return plain;
}

/* --- allocations that fail ------------------------------------------------------------------ */

static inline void *fail_one(void *argument)
{
    struct rig_config *config = argument;
    struct env env = testing_env(1);
    struct rig rig;
    enum status st = rig_create(&env, *config, &rig);
    mem_fail_at(env.mem, 0);
    if (st == STATUS_OK)
        rig_destroy(&rig);
    assert_int_equal(mem_total(env.mem), 0);
    config->fail_at = st == STATUS_OK ? 0 : config->fail_at;
    env_destroy(&env);
    return NULL;
}

/* Rank `who` of several runs out of memory while its part is created, at each allocation in turn:
 * all ranks stop and nothing leaks. Returns the last allocation that failed; the number of all,
 * unless only some are tried. */
static inline int64_t fail_each(struct rig_config config, int ranks, int who)
{
    int64_t failed = 0;
    for (int64_t n = 1;; n++) {
        if (!testing_sampled())
            continue;
        struct rig_config configs[MOST_RANKS];
        for (int r = 0; r < ranks; r++) {
            configs[r] = config;
            configs[r].fail_at = r == who ? n : 0;
        }
        rig_run_ranks(fail_one, configs, ranks, sizeof *configs);
        if (configs[who].fail_at == 0)
            return failed;
        failed = n;
    }
}

#endif
