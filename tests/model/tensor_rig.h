/* tensor_rig -- a tensor-parallel model whose ranks are threads; and the graph of a single rank,
 * without memory. */
#ifndef TESTS_MODEL_TENSOR_RIG_H
#define TESTS_MODEL_TENSOR_RIG_H
#include "comm/comm.h"
#include "model/model_rig.h"
#include "threads.h"

enum { MOST_RANKS = 4, MODES = 3 };

/* Tensor parallel; sequence parallel with inputs kept gathered, or gathered again. */
static const struct {
    const char *name;
    bool sequence, regather;
} modes[MODES] = {{"tensor", false, false}, {"keep", true, false}, {"regather", true, true}};

struct setting {
    struct model_config config;
    const char *backend;
    enum dtype type;
    int64_t batch, tokens;
    int tp, mode;
    enum keep rebuild;
    bool parts;   /* backward in two halves */
    double delay; /* maximum seconds around calls */
};

/* --- models: sizes that divide by 4, but for the vocabulary --------------------------------- */

static inline struct model_config gpt2(void)
{
    struct model_config c = rig_gpt2();
    c.width = 16;
    c.heads = c.kv_heads = 4;
    c.ff = 24;
    return c;
}

static inline struct model_config llama(int64_t kv_heads)
{
    struct model_config c = rig_llama();
    c.width = 16;
    c.heads = 8;
    c.kv_heads = kv_heads;
    c.ff = 20;
    return c;
}

static inline struct model_config untied(struct model_config c)
{
    c.tied = 0;
    c.layers = 3;
    return c;
}

enum { MODELS = 5 + 9 };
static inline struct model_config model_at(int i)
{
    switch (i) {
    case 0: return gpt2();
    case 1: {
        struct model_config c = untied(gpt2());
        c.gelu = 1;
        return c;
    }
    case 2: return llama(4);
    case 3: return llama(2); /* fewer kv heads than ranks */
    case 4: return untied(llama(1));
    }
    int arch = MODEL_QWEN2 + i - 5;
    struct model_config c = rig_relative(arch < MODEL_ARCHS ? arch : MODEL_LLAMA);
    bool once = model_traits(c.arch)->whole_norm || model_traits(c.arch)->fused;
    c.width = 16;
    c.heads = 8;
    c.kv_heads = once ? 4 : 2;
    c.ff = 8;
    return c;
}

/* --- ranks ---------------------------------------------------------------------------------- */

struct rank {
    const struct setting *setting;
    struct comm_hub *hub;
    void (*work)(struct rank *rank);
    int number;
    struct rig rig;
    double loss, evaluated;
    int64_t bytes[COMM_KIND_COUNT]; /* of the gradients */
    void *logits;
    int products, gelus; /* calls of linear_gelu and gelu, where a test counts them */
};

static inline struct model_part part_of(const struct setting *s, int rank)
{
    return (struct model_part){.tp = s->tp,
                               .t = rank,
                               .sequence = modes[s->mode].sequence,
                               .regather = modes[s->mode].regather};
}

static inline void open_rig(struct rank *rank, bool sequence)
{
    const struct setting *s = rank->setting;
    struct model_part part = part_of(s, rank->number);
    struct unit_shape shape = {s->batch, s->tokens, 0};
    if (sequence && part.sequence && s->tp > 1)
        shape.sequence = s->tp;
    rig_open_part(&rank->rig, &s->config, s->backend, s->type, shape, s->rebuild, s->parts, &part);
    rig_fill_params(&rank->rig, 0.3);
}

static inline void *rank_main(void *argument)
{
    struct rank *rank = argument;
    struct comm_config config = {.backend = "threads", .timeout = 120};
    if (rank->setting->tp > 1) {
        assert_int_equal(
            comm_join(rank->hub, rank->number, &config, rank->rig.device, &rank->rig.group),
            STATUS_OK);
        comm_inject_delays(rank->rig.group, rank->setting->delay, (uint64_t)rank->number);
    }
    rank->work(rank);
    comm_destroy(rank->rig.group);
    return NULL;
}

/* Rigs stay open. */
static inline void run_ranks(const struct setting *s, bool sequence, void (*work)(struct rank *),
                             struct rank *ranks)
{
    struct env env;
    struct comm_hub *hub;
    assert_int_equal(env_create(&env, hear, &(struct heard){0}, LOG_INFO, 1), STATUS_OK);
    assert_int_equal(comm_hub_create(&env, s->tp, &hub), STATUS_OK);
    for (int r = 0; r < s->tp; r++) {
        ranks[r] = (struct rank){.setting = s, .hub = hub, .work = work, .number = r};
        open_rig(&ranks[r], sequence);
    }
    threads_run(rank_main, ranks, s->tp, sizeof *ranks);
    comm_hub_destroy(hub);
    env_destroy(&env);
}

static inline void close_ranks(struct rank *ranks, int count)
{
    for (int r = 0; r < count; r++) {
        if (ranks[r].logits)
            device_free(ranks[r].rig.device, ranks[r].logits);
        rig_close(&ranks[r].rig);
    }
}

static inline void work_gradients(struct rank *rank)
{
    rank->loss = rig_gradients(&rank->rig);
    for (int kind = 0; rank->rig.group && kind < COMM_KIND_COUNT; kind++)
        rank->bytes[kind] = comm_counted(rank->rig.group, (enum comm_kind)kind).bytes;
}
static inline struct setting setting_of(struct model_config config, const char *backend,
                                        enum dtype type)
{
    return (struct setting){.config = config,
                            .backend = backend,
                            .type = type,
                            .batch = 2,
                            .tokens = 8,
                            .tp = 1,
                            .rebuild = KEEP_NOT};
}

/* --- a single rank -------------------------------------------------------------------------- */

/* The graph of one rank, for names and sizes. */
struct lone {
    struct fixture fixture;
    struct device *device;
    struct model *model;
    const struct unit_graph *graph;
};

static inline void open_lone(struct lone *l, const struct model_config *config,
                             const struct model_part *part)
{
    fixture_open(&l->fixture);
    assert_int_equal(device_create(&l->fixture.env, "dry", 0, &l->device), STATUS_OK);
    assert_int_equal(model_create_part(l->device, config, part, &l->model), STATUS_OK);
    l->graph = model_graph(l->model);
}

static inline void close_lone(struct lone *l)
{
    model_destroy(l->model);
    device_destroy(l->device);
    fixture_close(&l->fixture);
}
#endif
