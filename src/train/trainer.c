/* trainer -- how a run begins and ends: ranks join, everything a step needs is created, the state
 * is loaded from a checkpoint or initialized, and at the end it is saved. trainer_steps.c has the
 * steps. */
#include "train/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/named.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/fallback.h"
#include "train/checkpoint/resume.h"
#include "train/models/model_weights.h"
#include "train/run/run_folder.h"
#include "train/trainer_impl.h"

/* --- creation ------------------------------------------------------------------------------- */

/* Are checkpoints written from a copy of the state? Background saves need one, and so do TP ranks,
 * which assemble in it what each of them writes. */
static bool saves_copies(const struct run_config *config)
{
    return config->parallel.tp > 1 ||
           checkpoint_in_background(&config->checkpoint, config->train.steps);
}

struct zero_config trainer_store_config(const struct run_config *config)
{
    const struct train_config *train = &config->train;
    return (struct zero_config){.optimizer = run_optimizer(config),
                                .weight_decay = train->weight_decay,
                                .clip = train->clip,
                                .meta_clip = config->model.sars.meta_clip,
                                .groups = config->groups,
                                .group_count = config->optimizer.groups.count,
                                .micro_batches = run_micro_batches(config),
                                .stage = config->ranks.stage,
                                .prefetch = (int)config->ranks.prefetch,
                                .bucket = config->ranks.bucket,
                                .unit_layers = (int)config->ranks.unit_layers,
                                .servers = (int)config->ranks.servers,
                                .shard_group = (int)config->ranks.shard_group,
                                .local = config->ranks.accumulate == RUN_ACCUMULATE_LOCAL,
                                .type = run_type(config),
                                .sum_type = run_sum_type(config),
                                .stochastic = config->optimizer.rounding == RUN_ROUNDING_STOCHASTIC,
                                .seed = (uint64_t)train->seed,
                                .noise = train->noise_scale,
                                .offload = run_offload(&config->offload),
                                .snapshot = saves_copies(config)};
}

static void report_failure(struct trainer *t, enum status st)
{
    const char *error = log_first_error(t->env->log);
    if (!t->session.comm)
        return;
    if (t->ranks->failing)
        t->ranks->failing(t->ranks->rank, st, error);
    if (!t->saves.lost) /* otherwise all ranks know it and log the same */
        comm_abort(t->session.comm, error);
}

/* All ranks continue, or none does. A rank that failed has logged why. */
static enum status agree(struct trainer *t, enum status st)
{
    int64_t failures;
    if (st != STATUS_OK)
        report_failure(t, st);
    TRY(st);
    return engine_vote(t->engine, 0, &failures);
}

/* A resumed run locks the folder before its checkpoints are read; a new run creates it when all
 * else has succeeded (open_folder). */
static enum status lock_folder(struct trainer *t, bool *holds)
{
    *holds = false;
    if (!trainer_is_first(t))
        return STATUS_OK;
    TRY(run_folder_check(t->env, t->target->folder, t->target->fresh, holds));
    *holds = *holds && !t->target->fresh;
    return *holds ? run_folder_prepare(t->env, t->target->folder, false, &t->lock) : STATUS_OK;
}

static bool is_complete(const struct trainer *t)
{
    return t->step >= t->config->train.steps;
}

/* A disk that is too full is found now, not after hours of training. */
static enum status check_room(struct trainer *t)
{
    const struct checkpoint_config *config = &t->config->checkpoint;
    const struct checkpoint_room_need need = {.folder = t->checkpoints,
                                              .empty = t->target->fresh,
                                              .config = config,
                                              .bytes = checkpoint_saver_bytes(t->saves.saver),
                                              .step = t->step,
                                              .steps = t->config->train.steps};
    if (is_complete(t) || !checkpoint_any(config, need.steps))
        return STATUS_OK;
    if (*config->fallback) {
        char *probe;
        TRY(named_out(t->env, "checkpoint.fallback", config->fallback));
        TRY(dir_create(t->env, config->fallback));
        TRY(path_join(t->env, config->fallback, "probe", &probe));
        enum status st = file_check_parent(t->env, probe);
        mem_free(t->env, probe);
        TRY(st);
    }
    return checkpoint_room_check(t->env, &need);
}

static enum status open_folder(struct trainer *t)
{
    int64_t every = t->config->train.sample_every;
    int64_t recorded = t->load.branched ? 0 : t->step; /* the last step of this folder */
    int64_t sampled = every > 0 ? recorded / every * every : 0;
    if (!trainer_is_first(t))
        return STATUS_OK;
    bool held = t->lock != NULL;
    if (held)
        TRY(checkpoint_keep_clear(t->env, t->checkpoints)); /* may free disk space */
    TRY(check_room(t));
    if (!held) {
        TRY(run_folder_prepare(t->env, t->target->folder, t->target->fresh, &t->lock));
        TRY(checkpoint_keep_clear(t->env, t->checkpoints));
    }
    /* of a complete run, only the clean-up of old checkpoints may have been left over */
    if (is_complete(t) && !trainer_owes_evaluation(t))
        return STATUS_OK;
    /* of two checkpoints of one step, the run has resumed from the one in the fallback */
    TRY(checkpoint_keep_set_aside(t->env, t->checkpoints,
                                  t->saves.last_step - t->saves.in_fallback));
    /* metrics.jsonl first: it marks the config.yaml as that of a run */
    TRY(metrics_create(t->env, t->target->folder, recorded, sampled, t->target->config_yaml,
                       text_sampler_bytes(t->sampler), t->routing, &t->metrics));
    const char *yaml = t->target->config_yaml;
    char *path;
    TRY(path_join(t->env, t->target->folder, "config.yaml", &path));
    enum status st = file_write_atomic(t->env, path, yaml, strlen(yaml));
    mem_free(t->env, path);
    return st;
}

/* The other folder that may hold the last checkpoint, the same on all ranks; NULL = none. */
static enum status find_fallback(struct trainer *t, bool wanted, char **folder)
{
    const char *fallback = t->config->checkpoint.fallback;
    struct comm *comm = t->session.comm;
    uint64_t id = wanted ? fallback_id(t->env, t->target->folder) : 0, *all;
    *folder = NULL;
    if (!*fallback)
        return STATUS_OK;
    if (comm) {
        TRY(mem_alloc_array(t->env, MEM_OTHER, "fallback", (size_t)comm_size(comm), sizeof *all,
                            &all));
        enum status st = comm_exchange(comm, &id, sizeof id, all);
        id = all[0];
        mem_free(t->env, all);
        TRY(st);
    }
    return id == 0 ? STATUS_OK : fallback_folder(t->env, fallback, t->target->folder, id, folder);
}

static void note_resumed(struct trainer *t, const char *folder)
{
    t->step = t->first_step = t->done.step;
    if (t->done.scaled)
        engine_set_loss_scale(t->engine, t->done.scale);
    t->summary->steps = t->summary->first_step = t->step;
    t->summary->tokens = t->done.tokens;
    t->summary->skipped = t->done.skipped;
    t->summary->loss = t->done.loss;
    if (!t->config->train
             .noise_scale) /* what was measured before is not that of this run's steps */
        t->done.noise = (struct noise_scale){0};
    t->summary->noise = t->done.noise;
    if (t->load.branched) { /* the folder has no checkpoint yet */
        t->done.evaluation_due = false;
        return;
    }
    t->saves.last_step = t->step;
    t->saves.in_fallback = t->load.in_fallback;
    snprintf(t->summary->checkpoint, sizeof t->summary->checkpoint, "%s/step-%" PRId64, folder,
             t->step);
}

/* Warn if the last checkpoint is in a fallback that is no longer configured: its steps are
 * repeated. */
static enum status warn_of_newer(struct trainer *t, const char *second)
{
    char *last;
    if (!trainer_is_first(t))
        return STATUS_OK;
    TRY(fallback_newer(t->env, t->target->folder, t->summary->checkpoint, &last));
    if (last && (!second || strncmp(last, second, strlen(second)) != 0))
        log_warn(t->env,
                 "the last checkpoint of the run, '%s', is not used; set checkpoint.fallback as "
                 "before to resume from it",
                 last);
    mem_free(t->env, last);
    return STATUS_OK;
}

/* Load the newest checkpoint; *found is false if there is none. */
static enum status resume(struct trainer *t, bool wanted, bool *found)
{
    /* Does the order in which gradients are summed depend on the number of workers? */
    bool by_workers =
        t->config->ranks.accumulate == RUN_ACCUMULATE_LOCAL || run_sum_type(t->config) != DTYPE_F32;
    char *second;
    TRY(find_fallback(t, wanted, &second));
    const struct resume_source source = {.folder = t->checkpoints,
                                         .second = second,
                                         .branch = t->config->train.branch,
                                         .direct = t->config->checkpoint.direct,
                                         .wanted = wanted,
                                         .config_yaml = t->target->config_yaml,
                                         .data = t->data_hash,
                                         .files = t->data_files,
                                         .print = &t->print,
                                         .steps = t->config->train.steps,
                                         .workers = zero_roster(t->session.zero)->workers,
                                         .by_workers = by_workers};
    enum status st = resume_run(t->env, &source, t->session.comm, model_graph(t->session.model),
                                t->session.zero, &t->done, &t->load, found);
    if (st == STATUS_OK && *found)
        note_resumed(t, t->load.in_fallback ? second : t->checkpoints);
    if (st == STATUS_OK && wanted)
        st = warn_of_newer(t, second);
    mem_free(t->env, second);
    return st;
}

static enum status fill_state(struct trainer *t, bool wanted)
{
    bool found;
    t->done = (struct checkpoint_progress){.loss = NAN};
    t->saves.last_step = -1;
    TRY(resume(t, wanted, &found));
    if (wanted && !found)
        log_info(t->env, "no checkpoint in '%s' yet: the run starts from the beginning",
                 t->target->folder);
    if (found)
        return STATUS_OK;
    if (t->config->source)
        return model_weights_load(t->env, t->config->source, t->session.model, t->session.zero);
    return zero_init(t->session.zero, (uint64_t)t->config->train.seed);
}

static enum status open_saves(struct trainer *t)
{
    const struct run_config *config = t->config;
    const struct checkpoint_setup setup = {
        .run = t->target->folder,
        .folder = t->checkpoints,
        .graph = model_graph(t->session.model),
        .model = t->session.model,
        .zero = t->session.zero,
        .tokenizer = config->tokenizer,
        .device = t->session.device,
        .comm = t->session.comm,
        .type = run_type(config),
        .config = &config->checkpoint,
        .config_yaml = t->target->config_yaml,
        .data = t->data_hash,
        .files = t->data_files,
        .print = t->print,
        .from_snapshot = saves_copies(config),
        .background = checkpoint_in_background(&config->checkpoint, config->train.steps)};
    return run_saves_open(t->env, &setup, t->callbacks, t->summary, &t->saves);
}

/* The run folder caches the tokens of text; nothing is written into a folder that the run will
 * refuse. Every rank checks it, because another host may see another folder. */
static enum status open_data(struct trainer *t)
{
    const struct run_config *config = t->config;
    struct data_config data = config->data;
    bool holds;
    TRY(run_folder_check(t->env, t->target->folder, t->target->fresh, &holds));
    t->folder_is_new = !file_exists(t->target->folder);
    if (t->session.comm)
        TRY(comm_barrier(t->session.comm)); /* every rank has looked: now it may be created */
    if (*data.cache)
        TRY(mem_strdup(t->env, data.cache, &t->cache));
    else
        TRY(path_join(t->env, t->target->folder, "cache", &t->cache));
    data.cache = t->cache;
    return dataset_create(t->env, &data, config->tokenizer, config->model.vocab,
                          config->train.context, (uint64_t)config->train.seed, &t->data);
}

static enum status check_agreement(struct trainer *t)
{
    const struct agreement_facts facts = {.config_yaml = t->target->config_yaml,
                                          .trace = t->target->trace,
                                          .gpu = t->config->device.name,
                                          .data = t->data,
                                          .context = t->config->train.context,
                                          .model = t->config->source};
    return session_agree(t->env, &facts, &t->session);
}

/* Ranks join before anything that may fail on one of them alone. */
static enum status join_ranks(struct trainer *t)
{
    const struct run_config *config = t->config;
    TRY(session_join(t->env, run_compute(config), t->ranks, &t->session));
    TRY(tracing_start(t->env, t->target->trace, config, t->session.device, &t->tracing));
    TRY(open_data(t));
    TRY(check_agreement(t));
    if (trainer_is_first(t)) {
        if (!*config->data.cache) /* else other runs may use what this one does not */
            TRY(dataset_prune_cache(t->data, t->cache));
        TRY(fingerprint_take(t->env, run_compute(config).backend, config->device.name, &t->print));
        TRY(agreement_print_data(t->env, t->data, config->train.context, &t->data_hash));
        TRY(dataset_digest(t->data, &t->data_files));
    }
    if (t->ranks == NULL || t->ranks->hub == NULL)
        footprints_start(&t->footprints, t->env->mem, t->session.device);
    return STATUS_OK;
}

/* Create everything a step needs, and the folder last. */
static enum status build_parts(struct trainer *t)
{
    const struct run_config *config = t->config;
    const struct zero_config store = trainer_store_config(config);
    const struct session_spread spread = {
        .parallel = config->parallel,
        .shape = {.batch = config->engine.micro_batch, .tokens = config->engine.tokens}};
    struct engine_config engine = config->engine;
    bool holds;
    TRY(join_ranks(t));
    TRY(path_join(t->env, t->target->folder, "checkpoints", &t->checkpoints));
    TRY(lock_folder(t, &holds));
    TRY(session_fill(&config->model, &store, &spread, &t->session));
    spread_configure_engine(&t->session.spread, &engine);
    TRY(engine_create(t->session.ops, t->session.stream, t->session.spread.graph, t->session.zero,
                      &engine, &t->engine));
    TRY(fill_state(t, holds));
    if (config->train.sample_every > 0)
        TRY(text_sampler_create(t->env, config, &t->session, &t->sampler));
    TRY(pace_create(t->env, &t->pace));
    TRY(routing_create(t->env, &config->model, &t->routing));
    TRY(open_saves(t));
    return open_folder(t);
}

static enum status build(struct trainer *t)
{
    enum status st = build_parts(t);
    if (st != STATUS_OK && !t->metrics && t->folder_is_new && t->cache) {
        /* A failed start leaves no new folder behind. */
        if (!*t->config->data.cache)
            token_cache_discard(t->cache);
        rmdir(t->target->folder); /* fails if it is not empty */
    }
    TRY(agree(t, st));
    return tracing_align(&t->tracing, t->session.comm);
}

static void tear_down(struct trainer *t)
{
    metrics_destroy(t->metrics);
    run_saves_close(&t->saves);
    lock_file_release(t->lock);
    mem_free(t->env, t->checkpoints);
    routing_destroy(t->routing);
    pace_destroy(t->pace);
    text_sampler_destroy(t->sampler);
    engine_destroy(t->engine);
    session_destroy(&t->session);
    dataset_destroy(t->data);
    mem_free(t->env, t->cache);
    tracing_stop(&t->tracing);
}

/* Idle ranks need memory and take part in every gather and reduction, but compute nothing. */
static void warn_of_idle(struct trainer *t)
{
    const struct train_config *train = &t->config->train;
    int64_t batch = batch_ramp_at(&t->config->ramp, t->done.tokens);
    int64_t micro_batches = batch / train->micro_batch;
    bool ramp = batch < train->global_batch;
    int workers = zero_roster(t->session.zero)->workers;
    int64_t idle = workers - micro_batches;
    if (idle > 0)
        log_warn(t->env,
                 "%" PRId64 " of %d ranks %s nothing to compute%s: a step has %" PRId64
                 " micro-batch%s; raise %s, lower train.micro_batch or use fewer ranks",
                 idle, workers, idle == 1 ? "has" : "have", ramp ? " at first" : "", micro_batches,
                 micro_batches == 1 ? "" : "es",
                 ramp ? "the sizes of train.batch_ramp" : "train.global_batch");
}

static void report_ready(struct trainer *t)
{
    int64_t train_tokens = dataset_train_tokens(t->data);
    const struct train_config *train = &t->config->train;
    double planned = (double)(t->done.tokens + trainer_tokens_left(t));
    struct trainer_facts facts = {.config = t->config,
                                  .folder = t->target->folder,
                                  .parameters = t->summary->parameters,
                                  .train_tokens = train_tokens,
                                  .val_tokens = dataset_eval_tokens(t->data),
                                  .data_bytes = dataset_mapped_bytes(t->data),
                                  .step_tokens = train->global_batch * train->context,
                                  .flops_per_token = t->flops_per_token,
                                  .epochs = planned / (double)train_tokens,
                                  .first_step = t->first_step,
                                  .load = &t->load,
                                  .held = &t->held,
                                  .cores = &t->cores,
                                  .ranks = t->session.spread.mesh.size,
                                  .comm = t->session.comm ? comm_backend_name(t->session.comm) : "",
                                  .device = device_backend(t->session.device),
                                  .gpu = t->config->device.name};
    if (!trainer_is_first(t))
        return;
    warn_of_idle(t);
    spread_warn_unused(t->env, &t->config->parallel);
    if (t->callbacks->ready != NULL)
        t->callbacks->ready(t->callbacks->user, &facts);
}

/* --- the end -------------------------------------------------------------------------------- */

/* The model state of a single rank that holds everything: parameters, gradients and masters have 8
 * bytes together, in fp32 as with 16-bit parameters; the optimizer adds its own. Frozen tensors are
 * parameters only. */
static size_t whole_state(const struct trainer *t)
{
    const struct unit_graph *graph = model_graph(t->session.model);
    const struct zero_config store = trainer_store_config(t->config);
    double bytes = 0;
    for (int i = 0; i < graph->tensor_count; i++) {
        struct optimizer optimizer = zero_optimizer_of(&store, &graph->tensors[i]);
        double each = zero_tensor_is_frozen(t->session.zero, i) ? (double)dtype_bytes(store.type)
                                                                : 8 + optimizer_bytes(&optimizer);
        bytes += (double)unit_tensor_whole(&graph->tensors[i]) * each;
    }
    return (size_t)bytes;
}

/* The memory of the worst rank, and what a single rank would need. */
static enum status note_state(struct trainer *t)
{
    struct trainer_summary *s = t->summary;
    trainer_look(t);
    TRY(footprint_compare(&t->footprints, false, t->session.device, t->session.comm, &t->held));
    TRY(cores_compare(t->env, t->session.comm, &t->cores));
    s->ranks = t->session.spread.mesh.size;
    s->state_bytes = t->held.state_bytes;
    s->state_rank = t->held.state_rank;
    s->part = spread_count(&t->session.spread, t->session.zero);
    s->whole_bytes = whole_state(t);
    s->held = t->held;
    s->built_bytes = t->held.total_bytes;
    return STATUS_OK;
}

/* With --fresh the same command would rename what was saved. */
static void log_stop(struct trainer *t, bool begun)
{
    static const char *const ways[2][2] = {
        {"rerun the same command to resume", "rerun the same command without --fresh to resume"},
        {"rerun with a larger train.stop_at, or none, to resume",
         "rerun without --fresh and with a larger train.stop_at, or none, to resume"},
    };
    if (!begun)
        log_warn(t->env, "stopped before the first step: there is nothing to save yet; rerun the "
                         "same command to start");
    else if (t->saves.last_step < 0)
        log_warn(t->env,
                 "stopped after step %" PRId64
                 ": nothing is saved (checkpoint.final: false); rerun "
                 "the same command to start again",
                 t->step);
    else
        log_warn(t->env, "stopped after step %" PRId64 "%s saved in '%s'; %s", t->step,
                 t->saves.last_step == t->step
                     ? ":"
                     : ", which is not saved (checkpoint.final: false): an earlier one is",
                 t->summary->checkpoint, ways[trainer_at_stop(t)][t->target->fresh]);
}

static void log_complete(struct trainer *t)
{
    int64_t steps = t->config->train.steps;
    if (t->step == steps)
        log_notice(t->env, "the run in '%s' is complete: step %" PRId64 " of %" PRId64,
                   t->target->folder, t->step, steps);
    else
        log_notice(t->env,
                   "the run in '%s' has done %" PRId64 " steps and train.steps is %" PRId64
                   ": there is nothing left to do",
                   t->target->folder, t->step, steps);
}

/* The result of a run is its checkpoint: a summary that cannot be written is only a warning. */
static void write_summary(struct trainer *t)
{
    struct env quiet = *t->env;
    quiet.log = log_create(NULL, NULL, LOG_ERROR);
    if (!quiet.log || trainer_summary_write(&quiet, t->target->folder, t->summary) != STATUS_OK)
        log_warn(t->env, "no summary.json: %s",
                 quiet.log ? log_first_error(quiet.log) : "out of memory for a log");
    log_destroy(quiet.log);
}

/* Save, unless the run failed within a step or diverged: earlier checkpoints are worth more then.
 */
static enum status finish(struct trainer *t, enum status st, double seconds)
{
    bool sound = st == STATUS_OK || st == STATUS_STOPPED || st == STATUS_DIVERGED;
    bool begun = st == STATUS_OK || t->step > 0, moved = t->step > t->first_step;
    struct trainer_summary *summary = t->summary;
    tracing_close(&t->tracing);
    if (sound)
        trainer_suspend_steps(t); /* saving reports its failure */
    trainer_begin_phase(t, "checkpoint after step", NULL);
    bool kept = st == STATUS_OK ? t->config->checkpoint.last : st != STATUS_DIVERGED;
    kept = kept && t->config->checkpoint.final;
    const struct checkpoint_progress *done = kept ? &t->done : NULL;
    enum status saved = sound && begun ? run_saves_finish(&t->saves, done) : STATUS_OK;
    if (sound && st != STATUS_DIVERGED && saved == STATUS_OK && t->callbacks->all_saved)
        t->callbacks->all_saved(t->callbacks->user);
    trainer_look(t);
    if (sound && saved == STATUS_OK) /* all ranks are here */
        saved = footprint_compare(&t->footprints, true, t->session.device, t->session.comm,
                                  &summary->held);
    bool stopped = st == STATUS_STOPPED && saved == STATUS_OK;
    if (stopped) /* a rank that could not read its data tells the others */
        saved = agree(t, t->data_status);
    if (stopped && trainer_is_first(t) && (begun || saved == STATUS_OK))
        log_stop(t, begun);
    if (st == STATUS_STOPPED)
        st = STATUS_SAVED;
    enum status traced = trainer_write_trace(t, true);
    if (saved != STATUS_OK || st == STATUS_OK)
        st = saved != STATUS_OK ? saved : traced;
    summary->end = st == STATUS_OK         ? "done"
                   : st == STATUS_SAVED    ? "stopped"
                   : st == STATUS_DIVERGED ? "diverged"
                                           : "failed";
    if (st != STATUS_OK && st != STATUS_SAVED)
        snprintf(summary->error, sizeof summary->error, "%s", log_first_error(t->env->log));
    summary->seconds = seconds;
    summary->tokens_per_second = pace_median(t->pace);
    summary->gauges = gauges_whole(&t->gauges);
    bool news = t->first_step == 0 || moved || t->evaluated_late;
    if (!trainer_is_first(t) || !news) /* keep the earlier summary */
        return st;
    write_summary(t);
    return st;
}

enum status trainer_run(struct env *env, const struct run_config *config,
                        const struct session_ranks *ranks, const struct trainer_target *target,
                        const struct trainer_callbacks *callbacks, struct trainer_summary *summary)
{
    struct trainer t = {.env = env,
                        .config = config,
                        .ranks = ranks,
                        .target = target,
                        .callbacks = callbacks,
                        .summary = summary,
                        .schedule = run_schedule(config),
                        .deadline = deadline_start(config->train.max_time)};
    *summary = (struct trainer_summary){.end = "failed",
                                        .planned_steps = config->train.steps,
                                        .loss = NAN,
                                        .tokens_per_second = NAN};
    enum status st = build(&t);
    if (st == STATUS_OK) {
        st = note_state(&t);
        summary->parameters = unit_graph_count(model_graph(t.session.model));
        t.flops_per_token = model_flops_per_token(t.session.model, config->train.context);
        report_ready(&t);
        if (st == STATUS_OK)
            st = zero_settle(t.session.zero); /* the first parameters may still be in flight */
        trainer_resume_steps(&t);
        double start = clock_seconds();
        if (st == STATUS_OK && is_complete(&t) && trainer_is_first(&t))
            log_complete(&t);
        st = st == STATUS_OK ? trainer_evaluate_due(&t) : st;
        st = st == STATUS_OK ? trainer_loop(&t) : st;
        st = finish(&t, st, clock_seconds() - start);
        if (st != STATUS_OK && st != STATUS_SAVED && st != STATUS_DIVERGED)
            report_failure(&t, st);
    }
    tear_down(&t);
    return st;
}
