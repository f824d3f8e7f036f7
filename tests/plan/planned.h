/* planned -- runs ranks as threads and compares each with its plan: bytes by category, bytes on
 * disk, and bytes sent and moved, exactly. */
#ifndef TESTS_PLAN_PLANNED_H
#define TESTS_PLAN_PLANNED_H
#include "engine/rig.h"
#include "plan/plan.h"

enum { MOST_RANKS = 16 };

/* A plan makes no files. */
static inline struct zero_offload planned_offload(struct zero_offload offload)
{
    offload.folder = "/nowhere";
    return offload;
}

static inline struct plan_request request_of(const struct rig_config *config, int ranks)
{
    return (struct plan_request){
        .model = config->model,
        .engine = {.recompute = config->recompute,
                   .micro_batch = config->batch,
                   .tokens = config->tokens,
                   .micro_batches = config->micro_batches},
        .zero = {.optimizer.kind = config->optimizer,
                 .optimizer.momentum = config->no_momentum ? 0 : 0.95,
                 .snapshot = config->snapshot,
                 .groups = config->groups,
                 .group_count = config->group_count,
                 .optimizer.nesterov = true,
                 .optimizer.beta1 = 0.9,
                 .optimizer.beta2 = 0.95,
                 .optimizer.eps = 1e-8,
                 .weight_decay = 0.1,
                 .clip = config->clip,
                 .stage = config->stage,
                 .prefetch = config->prefetch,
                 .servers = config->servers,
                 .shard_group = config->group,
                 .local = config->local,
                 .offload = planned_offload(config->offload),
                 .type = config->type,
                 .sum_type = config->sum_type},
        .parallel = {.tp = config->tp,
                     .sequence = config->sequence,
                     .regather = config->regather,
                     .pp = config->pp,
                     .schedule = config->kind,
                     .chunks = config->chunks,
                     .eager = config->eager},
        .ops = "cpu",
        .ranks = ranks,
        .threads = 1,
    };
}

struct rank_job {
    struct rig_config config;
    struct plan_rank measured;
};

static inline void *run_rank(void *argument)
{
    struct rank_job *job = argument;
    struct plan_rank *m = &job->measured;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, job->config, &rig));
    rig_step(&rig, 0);
    assert_ok(zero_settle(rig.zero));
    struct traffic before = engine_traffic(rig.engine);
    rig_step(&rig, 1);
    assert_ok(zero_settle(rig.zero));
    struct traffic after = engine_traffic(rig.engine);
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        m->sent[purpose] = after.sent[purpose] - before.sent[purpose];
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++)
        m->moved[way] = after.moved[way] - before.moved[way];
    m->disk_bytes = mem_sums(env.mem, MEM_DISK, false).total_bytes;
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        m->bytes[c] = mem_bytes(env.mem, c);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

static inline void compare(const struct rig_config *config, int ranks, int rank,
                           const struct plan_rank *run)
{
    struct env env = testing_env(1);
    struct plan_request request = request_of(config, ranks);
    struct plan_rank plan;
    assert_ok(plan_rank(&env, &request, rank, &plan));
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        if (c != MEM_OTHER && plan.bytes[c] != run->bytes[c])
            fail_msg("%s: planned %zu, taken %zu; stage %d, rank %d of %d, %d servers",
                     mem_category_word(c), plan.bytes[c], run->bytes[c], config->stage, rank, ranks,
                     config->servers);
    if (plan.disk_bytes != run->disk_bytes)
        fail_msg("disk: planned %zu, taken %zu; stage %d, rank %d of %d", plan.disk_bytes,
                 run->disk_bytes, config->stage, rank, ranks);
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++)
        if (plan.moved[way] != run->moved[way])
            fail_msg("%s: planned %lld, moved %lld; stage %d, rank %d of %d", traffic_way_word(way),
                     (long long)plan.moved[way], (long long)run->moved[way], config->stage, rank,
                     ranks);
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        if (plan.sent[purpose] != run->sent[purpose])
            fail_msg("purpose %d: planned %lld, sent %lld; stage %d, rank %d of %d, %d servers",
                     purpose, (long long)plan.sent[purpose], (long long)run->sent[purpose],
                     config->stage, rank, ranks, config->servers);
    env_destroy(&env);
}

static inline void run_and_compare(struct rig_config config, int ranks)
{
    if (!testing_sampled())
        return;
    struct rank_job jobs[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        jobs[r] = (struct rank_job){.config = config};
    rig_run_ranks(run_rank, jobs, ranks, sizeof *jobs);
    for (int r = 0; r < ranks; r++)
        compare(&config, ranks, r, &jobs[r].measured);
}

static inline struct rig_config base_config(bool llama, int64_t micro_batches)
{
    return (struct rig_config){.model = llama ? rig_llama() : rig_gpt2(),
                               .batch = 1,
                               .tokens = 11,
                               .micro_batches = micro_batches,
                               .prefetch = 1,
                               .clip = 1.0};
}

#endif
