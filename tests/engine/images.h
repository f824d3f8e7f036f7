/* images -- the saved state of a whole model: taken from a run, compared, and loaded by a run with
 * another layout; and settings of optimizers with every form of moments. */
#ifndef TESTS_ENGINE_IMAGES_H
#define TESTS_ENGINE_IMAGES_H
#include <pthread.h>

#include "engine/ranks.h"

/* --- optimizers ----------------------------------------------------------------------------- */

#define ADAM .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8

/* The tensors of GPT-2's blocks, and, of Llama's, those that are fused into one param, have
 * different optimizers. */
static const struct zero_group mixed_gpt2[] = {
    {"*attn*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*mlp*weight", 0.5, 0.1, {.kind = OPTIMIZER_SGD, .momentum = 0.9, .nesterov = true}},
    {"*ln_*", 1, 0, {.kind = OPTIMIZER_SGD}},
    {"*mlp.c_proj.bias", 1, 0, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
};
static const struct zero_group mixed_llama[] = {
    {"*q_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD, .momentum = 0.9}},
    {"*k_proj*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*gate_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD}},
    {"*up_proj*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*norm*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
};

enum { KIND_ADAMW8BIT, KIND_SGD, KIND_SGD_MOMENTUM, KIND_MIXED, KINDS };

static inline struct rig_config with_kind(struct rig_config config, int kind)
{
    bool llama = config.model.arch == MODEL_LLAMA;
    config.optimizer = kind == KIND_ADAMW8BIT ? OPTIMIZER_ADAMW8BIT
                       : kind == KIND_MIXED   ? OPTIMIZER_ADAMW
                                              : OPTIMIZER_SGD;
    config.no_momentum = kind == KIND_SGD;
    if (kind == KIND_MIXED) {
        config.groups = llama ? mixed_llama : mixed_gpt2;
        config.group_count = llama ? 5 : 4;
    }
    return config;
}

/* --- images --------------------------------------------------------------------------------- */

enum { MOST_TENSORS = 128 };

struct image { /* the saved state of a whole model */
    pthread_mutex_t lock;
    char *arrays[ZERO_STATES][MOST_TENSORS];
};

struct move_job {
    struct rig_config config;
    int begin, end;          /* steps */
    struct image *from, *to; /* NULL: none */
    int64_t chunk;           /* elements written at once; 0: all */
    float *params;
    int64_t count;
};

static inline char *image_at(struct image *image, int state, int tensor, size_t bytes)
{
    pthread_mutex_lock(&image->lock);
    char **array = &image->arrays[state][tensor];
    if (!*array)
        *array = calloc(bytes, 1);
    assert_non_null(*array);
    pthread_mutex_unlock(&image->lock);
    return *array;
}

static inline void image_free(struct image *image)
{
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < MOST_TENSORS; t++)
            free(image->arrays[s][t]);
    pthread_mutex_destroy(&image->lock);
}

/* Copy what this rank saves of tensors first .. end-1, from the last snapshot to the image. Any
 * thread. */
static inline void save_some(struct rig *rig, int first, int end, struct image *image)
{
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = first; t < end; t++) {
            enum zero_state state = (enum zero_state)s;
            struct zero_array array = zero_state_array(rig->zero, state, t);
            size_t width = dtype_bytes(array.type);
            struct zero_ranges part = zero_state_to_save(rig->zero, state, t, rig->config.rank);
            for (int i = 0; i < part.count; i++) {
                char *room = image_at(image, s, t, (size_t)array.count * width) +
                             (size_t)part.at[i].first * width;
                const void *data = NULL;
                assert_ok(zero_snapshot_read(rig->zero, state, t, part.at[i].first,
                                             part.at[i].count, room, &data));
                if (data != room)
                    memcpy(room, data, (size_t)part.at[i].count * width);
            }
        }
}

static inline void save_snapshot(struct rig *rig, struct image *image)
{
    const struct unit_graph *graph = model_graph(rig->model);
    assert_true(graph->tensor_count <= MOST_TENSORS);
    save_some(rig, 0, graph->tensor_count, image);
}

static inline void save_state(struct rig *rig, struct image *image)
{
    assert_ok(zero_snapshot(rig->zero));
    save_snapshot(rig, image);
    zero_snapshot_end(rig->zero);
}

/* In chunks, as from a file. */
static inline void load_state(struct rig *rig, const struct move_job *job)
{
    const struct unit_graph *graph = model_graph(rig->model);
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < graph->tensor_count; t++) {
            enum zero_state state = (enum zero_state)s;
            struct zero_array array = zero_state_array(rig->zero, state, t);
            struct zero_range held = zero_state_held(rig->zero, state, t);
            int64_t end = held.first + held.count, most = job->chunk > 0 ? job->chunk : held.count;
            for (int64_t first = held.first, n; first < end; first += n) {
                n = end - first < most ? end - first : most;
                assert_ok(zero_state_write(rig->zero, state, t, first, n, array.type,
                                           job->from->arrays[s][t] +
                                               (size_t)first * dtype_bytes(array.type)));
            }
        }
    assert_ok(zero_publish(rig->zero, job->begin));
}

static inline void *move_rank(void *argument)
{
    struct move_job *job = argument;
    struct env env = testing_env(1);
    struct rig rig;
    job->config.snapshot = job->to != NULL;
    assert_ok(rig_create(&env, job->config, &rig));
    assert_ok(zero_settle(rig.zero));
    if (job->from)
        load_state(&rig, job);
    for (int step = job->begin; step < job->end; step++)
        rig_step(&rig, step);
    if (job->to)
        save_state(&rig, job->to);
    job->params = rig_params(&rig, &job->count);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

/* Returns the params of the first rank. */
static inline float *move(const struct move_job *job, int ranks, int64_t *count)
{
    struct move_job jobs[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        jobs[r] = *job;
    rig_run_ranks(move_rank, jobs, ranks, sizeof *jobs);
    for (int r = 1; r < ranks; r++)
        free(jobs[r].params);
    *count = jobs[0].count;
    return jobs[0].params;
}

static inline void expect_same_image(const struct image *a, const struct image *b,
                                     struct rig_config config)
{
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, config, &rig));
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < model_graph(rig.model)->tensor_count; t++) {
            struct zero_array array = zero_state_array(rig.zero, (enum zero_state)s, t);
            if (array.count > 0)
                assert_memory_equal(a->arrays[s][t], b->arrays[s][t],
                                    (size_t)array.count * dtype_bytes(array.type));
        }
    rig_destroy(&rig);
    env_destroy(&env);
}

/* Steps 0 and 1 on one layout and step 2 on another, compared with all three on one rank. */
static inline void check_move(struct rig_config one, struct rig_config first, int first_ranks,
                              struct rig_config second, int second_ranks)
{
    if (!testing_sampled())
        return;
    struct image there = {.lock = PTHREAD_MUTEX_INITIALIZER}, plain = there, moved = there;
    struct move_job job = {.config = one, .end = 3, .to = &plain};
    int tp = one.tp > 0 ? one.tp : 1;
    int64_t count;
    float *expected = move(&job, tp, &count);
    job = (struct move_job){.config = first, .end = 2, .to = &there};
    free(move(&job, first_ranks, &count));
    job = (struct move_job){
        .config = second, .begin = 2, .end = 3, .from = &there, .to = &moved, .chunk = 1000};
    float *params = move(&job, second_ranks, &count);
    assert_memory_equal(expected, params, (size_t)count * sizeof *params);
    if (tp == 1)
        expect_same_image(&plain, &moved, one);
    free(expected);
    free(params);
    image_free(&there);
    image_free(&plain);
    image_free(&moved);
}

/* What was fetched ahead is not what a later load has written. */
static inline void check_load_into_running(struct rig_config config)
{
    struct image image = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct env env = testing_env(1);
    struct rig rig;
    int64_t count;
    config.snapshot = true;
    assert_ok(rig_create(&env, config, &rig));
    rig_step(&rig, 0);
    save_state(&rig, &image);
    rig_step(&rig, 1);
    float *expected = rig_params(&rig, &count);
    rig_step(&rig, 2); /* and the first packets of the next update are in their slots */
    assert_ok(zero_settle(rig.zero));
    load_state(&rig, &(struct move_job){.begin = 1, .from = &image});
    rig_step(&rig, 1);
    float *again = rig_params(&rig, &count);
    assert_memory_equal(expected, again, (size_t)count * sizeof *again);
    free(expected), free(again);
    rig_destroy(&rig);
    env_destroy(&env);
    image_free(&image);
}

#endif
