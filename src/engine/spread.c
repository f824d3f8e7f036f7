/* spread -- options of parallel.*, and the part of a model that a rank has.
 */
#include "engine/spread.h"

#include <string.h>
#include <unistd.h>

#include "base/options.h"

static const struct option options[] = {
    {.key = "parallel.tp",
     .type = OPTION_INT,
     .offset = offsetof(struct parallel_config, tp),
     .fallback = "1",
     .ranged = true,
     .min = 1,
     .max = 1024,
     .help = "tensor-parallel degree: adjacent ranks that compute every layer together, each "
             "with a part of its matrices"},
    {.key = "parallel.sequence",
     .type = OPTION_BOOL,
     .offset = offsetof(struct parallel_config, sequence),
     .fallback = "false",
     .help = "sequence parallelism: between matrix products, each rank of a TP group holds only "
             "part of the tokens; no effect unless parallel.tp is above 1"},
    {.key = "parallel.regather",
     .type = OPTION_BOOL,
     .offset = offsetof(struct parallel_config, regather),
     .fallback = "false",
     .help =
         "with parallel.sequence: gather the inputs of matrix products again in the backward pass "
         ""
         "instead of keeping them"},
    {.key = "parallel.pp",
     .type = OPTION_INT,
     .offset = offsetof(struct parallel_config, pp),
     .fallback = "1",
     .ranged = true,
     .min = 1,
     .max = 4096,
     .help = "pipeline-parallel degree: PP stages, each with consecutive layers"},
    {.key = "parallel.schedule",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct parallel_config, schedule),
     .fallback = "1f1b",
     .choices = timetable_words,
     .help = "pipeline schedule: 1f1b keeps fewer activations than gpipe; interleaved and "
             "zero-bubble spend less time idle"},
    {.key = "parallel.chunks",
     .type = OPTION_INT,
     .offset = offsetof(struct parallel_config, chunks),
     .fallback = "0",
     .ranged = true,
     .min = 0,
     .max = 64,
     .help = "chunks per PP stage with interleaved; 0 = 2 (1 for other schedules)"},
    {.key = "parallel.eager",
     .type = OPTION_BOOL,
     .offset = offsetof(struct parallel_config, eager),
     .fallback = "false",
     .help = "up to twice as many micro-batches in flight, to hide slow messages; not for gpipe"},
};

const struct option_table parallel_options = {"parallel", options,
                                              sizeof options / sizeof *options};

/* Keys that have an effect only with another setting. */
enum need { NEED_PIPELINE, NEED_TP_GROUP, NEED_SEQUENCE };
static const char *const need_words[] = {
    [NEED_PIPELINE] = "parallel.pp above 1",
    [NEED_TP_GROUP] = "parallel.tp above 1",
    [NEED_SEQUENCE] = "parallel.sequence and parallel.tp above 1",
};
static const struct {
    const char *key;
    enum need need;
} dependents[] = {
    {"parallel.schedule", NEED_PIPELINE}, {"parallel.chunks", NEED_PIPELINE},
    {"parallel.eager", NEED_PIPELINE},    {"parallel.sequence", NEED_TP_GROUP},
    {"parallel.regather", NEED_SEQUENCE},
};
enum { DEPENDENTS = sizeof dependents / sizeof dependents[0] };

static bool has(const struct parallel_config *config, enum need need)
{
    if (need == NEED_PIPELINE)
        return config->pp > 1;
    return config->tp > 1 && (need == NEED_TP_GROUP || config->sequence);
}

bool spread_has_use(const struct parallel_config *config, const char *key, size_t bytes)
{
    for (int i = 0; i < DEPENDENTS; i++)
        if (strlen(dependents[i].key) == bytes && strncmp(dependents[i].key, key, bytes) == 0)
            return has(config, dependents[i].need);
    return true;
}

void spread_warn_unused(struct env *env, const struct parallel_config *config)
{
    const bool set[DEPENDENTS] = {config->schedule != TIMETABLE_1F1B, config->chunks > 0,
                                  config->eager, config->sequence, config->regather};
    for (int i = 0; i < DEPENDENTS; i++)
        if (set[i] && !has(config, dependents[i].need))
            log_warn(env, "%s has no effect: it needs %s", dependents[i].key,
                     need_words[dependents[i].need]);
}

int spread_chunks(const struct parallel_config *config)
{
    if (config->chunks > 0)
        return (int)config->chunks;
    return config->schedule == TIMETABLE_INTERLEAVED ? 2 : 1;
}

int spread_messages(const struct parallel_config *config, int p)
{
    int pp = (int)config->pp, chunks = spread_chunks(config);
    return pp < 2 ? 0 : 2 * chunks - (p == 0) - (p == pp - 1);
}

enum status spread_cut(struct env *env, const struct unit_graph *whole, struct unit_shape shape,
                       const struct parallel_config *config, int *first, int64_t *cost)
{
    int units = whole->unit_count, pp_stages = (int)config->pp * spread_chunks(config);
    int64_t *unit_cost;
    TRY(mem_alloc_array(env, MEM_OTHER, "stages", (size_t)units, sizeof *unit_cost, &unit_cost));
    for (int u = 0; u < units; u++)
        unit_cost[u] = unit_work(&whole->units[u], shape);
    struct pp_cut_task task = {.units = units, .pp_stages = pp_stages, .cost = unit_cost};
    enum status st = pp_cut(env, &task, first);
    for (int s = 0; st == STATUS_OK && cost && s < pp_stages; s++) {
        cost[s] = 0;
        for (int u = first[s]; u < first[s + 1]; u++)
            cost[s] += unit_cost[u];
    }
    mem_free(env, unit_cost);
    return st;
}

/* Merge the pieces of the whole model that are exchanged together; part_of as in unit_merge.h.
 * Nothing is exchanged where a store has one rank. */
static enum status merge_pieces(struct spread *spread, const struct zero_config *store,
                                const int *part_of)
{
    struct unit_merge merge = zero_merge(store);
    if (spread->mesh.dp == 1 || (merge.units <= 1 && merge.elements == 0))
        return STATUS_OK;
    TRY(unit_merge_pieces(spread->env, spread->graph, &merge, part_of, &spread->merged));
    spread->graph = &spread->merged.graph;
    return STATUS_OK;
}

/* Find the units of this rank, and the chunks among them. */
static enum status cut_units(struct spread *spread, struct unit_shape shape,
                             const struct parallel_config *config, const struct zero_config *store)
{
    const struct unit_graph *whole = spread->graph;
    int pp = spread->mesh.pp, chunks = spread_chunks(config), *first = NULL, *pp_stage_of = NULL;
    enum status st;
    TRY_OR(done, mem_alloc_array(spread->env, MEM_OTHER, "stages", (size_t)(pp * chunks) + 1,
                                 sizeof *first, &first));
    TRY_OR(done, mem_alloc_array(spread->env, MEM_OTHER, "stages", (size_t)whole->unit_count,
                                 sizeof *pp_stage_of, &pp_stage_of));
    TRY_OR(done, spread_cut(spread->env, whole, shape, config, first, NULL));
    for (int s = 0; s < pp * chunks; s++)
        for (int u = first[s]; u < first[s + 1]; u++)
            pp_stage_of[u] = s;
    TRY_OR(done, merge_pieces(spread, store, pp_stage_of)); /* within virtual stages */
    for (int u = 0; u < whole->unit_count; u++)
        pp_stage_of[u] %= pp;
    TRY_OR(done,
           unit_cut_create(spread->env, spread->graph, pp_stage_of, spread->mesh.p, &spread->cut));
    TRY_OR(done, mem_alloc_array(spread->env, MEM_OTHER, "stages", (size_t)chunks,
                                 sizeof *spread->chunks, &spread->chunks));
    for (int c = 0, u = 0; c < chunks; c++) {
        int s = c * pp + spread->mesh.p;
        spread->chunks[c] = (struct zero_chunk){u, u + first[s + 1] - first[s]};
        u = spread->chunks[c].end;
    }
done:
    mem_free(spread->env, pp_stage_of);
    mem_free(spread->env, first);
    return st;
}

enum { HOST_BYTES = 256 };

/* TP ranks communicate in every layer, so they must be on one node. A plan is not checked: all its
 * ranks are on the machine that plans. */
static enum status check_hosts(struct spread *spread, struct comm *world)
{
    size_t size = (size_t)spread->mesh.size;
    char host[HOST_BYTES] = "", *all = NULL;
    const char **hosts = NULL;
    enum status st;
    if (strcmp(comm_backend_name(world), "dry") == 0)
        return STATUS_OK;
    gethostname(host, sizeof host - 1);
    TRY_OR(done, mem_alloc(spread->env, MEM_OTHER, "names of hosts", size * HOST_BYTES, &all));
    TRY_OR(done,
           mem_alloc_array(spread->env, MEM_OTHER, "names of hosts", size, sizeof *hosts, &hosts));
    TRY_OR(done, comm_exchange(world, host, sizeof host, all));
    for (size_t r = 0; r < size; r++)
        hosts[r] = all + r * HOST_BYTES;
    st = mesh_check_hosts(spread->env, &spread->mesh, hosts);
done:
    mem_free(spread->env, hosts);
    mem_free(spread->env, all);
    return st;
}

static enum status fill(struct spread *spread, struct comm *world, struct unit_shape shape,
                        const struct parallel_config *config, const struct zero_config *store)
{
    int chunks = spread_chunks(config);
    const struct timetable_shape shape_of_lists = {.kind = config->schedule,
                                                   .pp = spread->mesh.pp,
                                                   .chunks = chunks,
                                                   .rounds = 1, /* validation does not depend on it
                                                                   */
                                                   .eager = config->eager};
    if (spread->mesh.pp > 1)
        TRY(timetable_validate(spread->env, &shape_of_lists));
    if (spread->mesh.tp > 1)
        TRY(check_hosts(spread, world));
    TRY(mesh_groups_create(world, &spread->mesh, &spread->groups));
    spread->copies = spread->mesh.dp > 1 ? spread->groups.dp : NULL;
    if (spread->mesh.pp == 1)
        return merge_pieces(spread, store, NULL);
    TRY(cut_units(spread, shape, config, store));
    spread->graph = &spread->cut.graph;
    spread->store = (struct zero_pipe){&spread->cut, spread->groups.pp};
    spread->engine = (struct engine_pipe){spread->groups.pp, config->schedule, config->eager,
                                          spread->chunks, chunks};
    return STATUS_OK;
}

static enum status find_mesh(struct env *env, const struct comm *world,
                             const struct parallel_config *config, struct mesh *mesh)
{
    int tp = config->tp > 0 ? (int)config->tp : 1, pp = config->pp > 0 ? (int)config->pp : 1;
    return mesh_of(env, world ? comm_size(world) : 1, world ? comm_rank(world) : 0, tp, pp, mesh);
}

enum status spread_part(struct env *env, const struct comm *world, struct unit_shape shape,
                        const struct parallel_config *config, struct model_part *part)
{
    struct mesh mesh;
    TRY(find_mesh(env, world, config, &mesh));
    *part = (struct model_part){
        .tp = mesh.tp, .t = mesh.t, .sequence = config->sequence, .regather = config->regather};
    return model_part_check_rows(env, part, shape.batch, shape.tokens);
}

enum status spread_create(struct env *env, struct comm *world, const struct unit_graph *whole,
                          struct unit_shape shape, const struct parallel_config *config,
                          const struct zero_config *store, struct spread *spread)
{
    *spread = (struct spread){.env = env, .graph = whole, .copies = world};
    TRY(find_mesh(env, world, config, &spread->mesh));
    if (spread->mesh.pp == 1 && spread->mesh.tp == 1)
        return merge_pieces(spread, store, NULL);
    enum status st = fill(spread, world, shape, config, store);
    if (st != STATUS_OK)
        spread_free(spread);
    return st;
}

void spread_free(struct spread *spread)
{
    if (!spread->env)
        return;
    mem_free(spread->env, spread->chunks);
    unit_cut_free(spread->env, &spread->cut);
    unit_merged_free(spread->env, &spread->merged);
    mesh_groups_free(&spread->groups);
    *spread = (struct spread){0};
}

void spread_configure_store(const struct spread *spread, struct zero_config *config)
{
    config->tp_group = spread_tp_group(spread);
    if (!spread->chunks)
        return;
    config->pipe = &spread->store;
    config->chunks = spread->chunks;
    config->chunk_count = spread->engine.chunk_count;
}

const struct engine_pipe *spread_pipe(const struct spread *spread)
{
    return spread->chunks ? &spread->engine : NULL;
}

enum { EVAL_ROUNDS = 4 }; /* of an evaluation, per PP stage: a fifth of the time is idle */

void spread_configure_engine(const struct spread *spread, struct engine_config *config)
{
    config->pipe = spread_pipe(spread);
    config->group = spread_tp_group(spread);
    /* The stages of an evaluation fill and drain the pipeline in every call. */
    if (config->pipe && config->micro_batches == 0)
        config->eval_rounds = (int64_t)EVAL_ROUNDS * spread->mesh.pp;
}

struct comm *spread_tp_group(const struct spread *spread)
{
    return spread->mesh.tp > 1 ? spread->groups.tp : NULL;
}

/* The index in the whole model of a tensor of this rank's graph. */
static int whole_tensor(const struct spread *spread, int own)
{
    return spread->chunks ? spread->cut.whole_tensor[own] : own;
}

/* Whether unit u or a later one uses the param. */
static bool used_from(const struct unit_graph *graph, int u, int param)
{
    for (; u < graph->unit_count; u++)
        for (int i = 0; i < graph->units[u].use_count; i++)
            if (graph->units[u].uses[i] == param)
                return true;
    return false;
}

/* Elements of params that only units without a backward pass use. */
static int64_t count_once(const struct unit_graph *graph)
{
    int64_t count = 0;
    for (int u = 0; u < graph->backward_from; u++)
        for (int i = 0; i < graph->units[u].use_count; i++) {
            int param = graph->units[u].uses[i];
            if (!used_from(graph, graph->backward_from, param))
                count += unit_param_count(graph, param);
        }
    return count;
}

struct spread_counts spread_count(const struct spread *spread, const struct zero *store)
{
    const struct unit_graph *graph = spread->graph;
    struct spread_counts counts = {.muon = zero_muon_counts(store), .once = count_once(graph)};
    for (int t = 0; t < graph->tensor_count; t++) {
        const struct unit_split *split = &graph->tensors[t].split;
        if (split->partial)
            counts.partial += 2.0 * (split->replicas - 1) / split->replicas *
                              (double)unit_tensor_count(&graph->tensors[t]);
    }
    counts.first = !spread->chunks || spread->mesh.p == 0;
    counts.last = !spread->chunks || spread->mesh.p == spread->mesh.pp - 1;
    counts.inner_units = graph->unit_count - counts.first - counts.last;
    counts.forward_units = graph->backward_from > 0 ? graph->backward_from - counts.first : 0;
    for (int i = 0; i < graph->param_count; i++) {
        int piece = graph->params[i].piece;
        int64_t count = unit_param_count(graph, i);
        counts.parameters += count;
        if (zero_tensor_is_frozen(store, whole_tensor(spread, graph->params[i].first_tensor)))
            counts.frozen += count;
        if (!spread->chunks)
            continue;
        if (spread->cut.borrowed_from[piece] != UNIT_NO_STAGE)
            counts.borrowed += count;
        if (spread->cut.lent_to[piece] != UNIT_NO_STAGE)
            counts.lent += count;
    }
    return counts;
}
