/* trainer -- the loop. A step takes the next global_batch samples of the dataset, in order, as
 * micro-batches of the engine; what else happens (evaluation, text samples, records, checkpoints)
 * only reads. So the weights after a step depend on the configuration alone, and `struct
 * checkpoint_progress` with the state of the store is all that a run needs to go on.
 *
 * A skipped step uses up its samples and its place in the schedule, but not an update: AdamW's
 * bias correction counts updates.
 */
#include "train/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "train/agreement.h"
#include "train/checkpoint_keep.h"
#include "train/deadline.h"
#include "train/metrics.h"
#include "train/model_file.h"
#include "train/pace.h"
#include "train/resume.h"
#include "train/run_folder.h"
#include "train/run_saves.h"
#include "train/sampler.h"
#include "train/session.h"
#include "train/tracing.h"

struct trainer {
    struct env *env;                           /* borrowed */
    const struct run_config *config;           /* borrowed */
    const struct session_ranks *ranks;         /* borrowed; NULL: one rank */
    const struct trainer_place *place;         /* borrowed */
    const struct trainer_callbacks *callbacks; /* borrowed */
    struct trainer_summary *summary;           /* borrowed */

    struct schedule schedule;
    struct dataset *data;
    struct session session;
    struct engine *engine;
    struct sampler *sampler; /* NULL = no text samples */
    struct metrics *metrics;
    struct run_lock *lock; /* of the folder; NULL on other ranks */
    struct pace *pace;
    struct tracing tracing;
    struct footprint footprint;  /* of this rank's process */
    struct footprint_worst held; /* before the first step: nothing is taken after it */

    char *checkpoints; /* the folder */
    uint64_t data_print;
    struct fingerprint print;
    struct run_saves saves;
    struct deadline deadline;
    double longest_step; /* seconds */

    int64_t step;       /* the step that runs, from 1; afterwards how many were begun */
    int64_t first_step; /* after which it goes on */
    struct checkpoint_progress done; /* up to the last step */
    double flops_per_token;
    struct zero_traffic traffic; /* counted so far, whatever for */
    struct zero_traffic carried; /* of a step, seen after its record: the new parameters */
};

/* --- creation ------------------------------------------------------------------------------- */

struct zero_config trainer_store_config(const struct run_config *config)
{
    const struct train_config *train = &config->train;
    return (struct zero_config){.beta1 = train->beta1,
                                .beta2 = train->beta2,
                                .eps = train->eps,
                                .weight_decay = train->weight_decay,
                                .clip = train->clip,
                                .groups = config->groups.items,
                                .group_count = config->groups.count,
                                .micro_batches = run_micro_batches(config),
                                .stage = config->ranks.stage,
                                .prefetch = (int)config->ranks.prefetch,
                                .servers = (int)config->ranks.servers,
                                .shard_group = (int)config->ranks.shard_group,
                                .local = config->ranks.accumulate == RUN_ACCUMULATE_LOCAL,
                                .type = run_type(config),
                                .sum_type = run_sum_type(config),
                                .snapshot =
                                    checkpoint_in_background(&config->checkpoint, train->steps)};
}

static enum status fill_parameters(struct trainer *t)
{
    const char *path = t->config->model.path;
    if (*path)
        return model_file_load(t->env, path, t->session.model, t->session.zero);
    return zero_init(t->session.zero, (uint64_t)t->config->train.seed);
}

static enum status write_config(struct trainer *t)
{
    char *path;
    const char *yaml = t->place->config_yaml;
    TRY(path_join(t->env, t->place->folder, "config.yaml", &path));
    enum status st = file_write_atomic(t->env, path, yaml, strlen(yaml));
    mem_free(t->env, path);
    return st;
}

/* Files and what a person sees are the first rank's. */
static bool speaks(const struct trainer *t)
{
    return !t->session.comm || comm_rank(t->session.comm) == 0;
}

static void tell_failure(struct trainer *t, enum status st)
{
    const char *error = log_first_error(t->env->log);
    if (!t->session.comm)
        return;
    if (t->ranks->failing)
        t->ranks->failing(t->ranks->rank, st, error);
    comm_abort(t->session.comm, error);
}

/* All ranks go on, or none does: who failed has said why. */
static enum status agree(struct trainer *t, enum status st)
{
    int64_t failures;
    if (st != STATUS_OK)
        tell_failure(t, st);
    TRY(st);
    return engine_sum(t->engine, 0, &failures);
}

/* A run that goes on has the folder from before its checkpoints are read; a new one when all else
 * has gone well. */
static enum status take_folder(struct trainer *t, bool *holds)
{
    *holds = false;
    if (!speaks(t))
        return STATUS_OK;
    TRY(run_folder_check(t->env, t->place->folder, holds));
    *holds = *holds && !t->place->fresh;
    return *holds ? run_folder_prepare(t->env, t->place->folder, false, &t->lock) : STATUS_OK;
}

static bool is_complete(const struct trainer *t)
{
    return t->step >= t->config->train.steps;
}

static enum status open_folder(struct trainer *t)
{
    if (!speaks(t) || is_complete(t))
        return STATUS_OK;
    if (t->lock == NULL)
        TRY(run_folder_prepare(t->env, t->place->folder, t->place->fresh, &t->lock));
    TRY(checkpoint_keep_clear(t->env, t->checkpoints));
    TRY(checkpoint_keep_set_aside(t->env, t->checkpoints, t->saves.last_step));
    TRY(write_config(t));
    return metrics_create(t->env, t->place->folder, t->step, t->place->config_yaml,
                          sampler_text_bytes(t->sampler), &t->metrics);
}

/* From where it stood; `found` is false when that is nowhere. */
static enum status go_on(struct trainer *t, bool wanted, bool *found)
{
    const struct resume_place place = {.folder = t->checkpoints,
                                       .wanted = wanted,
                                       .config_yaml = t->place->config_yaml,
                                       .data = t->data_print,
                                       .print = &t->print};
    TRY(resume_run(t->env, &place, t->session.comm, model_graph(t->session.model), t->session.zero,
                   &t->done, found));
    if (!*found)
        return STATUS_OK;
    t->step = t->first_step = t->saves.last_step = t->done.step;
    if (t->done.scaled)
        engine_set_loss_scale(t->engine, t->done.scale);
    t->summary->steps = t->summary->first_step = t->step;
    t->summary->tokens = t->done.tokens;
    t->summary->skipped = t->done.skipped;
    t->summary->loss = t->done.loss;
    snprintf(t->summary->checkpoint, sizeof t->summary->checkpoint, "%s/step-%" PRId64,
             t->checkpoints, t->step);
    return STATUS_OK;
}

static enum status fill_state(struct trainer *t, bool wanted)
{
    bool found;
    t->done = (struct checkpoint_progress){.loss = NAN};
    t->saves.last_step = -1;
    TRY(go_on(t, wanted, &found));
    if (wanted && !found)
        log_info(t->env, "there is no checkpoint in '%s' yet: the run begins again",
                 t->place->folder);
    return found ? STATUS_OK : fill_parameters(t);
}

static enum status open_saves(struct trainer *t)
{
    const struct run_config *config = t->config;
    const struct checkpoint_setup setup = {
        .folder = t->checkpoints,
        .model = t->session.model,
        .zero = t->session.zero,
        .tokenizer = config->tokenizer,
        .device = t->session.device,
        .comm = t->session.comm,
        .type = run_type(config),
        .config = &config->checkpoint,
        .config_yaml = t->place->config_yaml,
        .data = t->data_print,
        .print = t->print,
        .background = checkpoint_in_background(&config->checkpoint, config->train.steps)};
    return run_saves_open(t->env, &setup, speaks(t), t->callbacks, t->summary, &t->saves);
}

static enum status check_agreement(struct trainer *t)
{
    struct agreement agreement;
    const struct agreement_facts facts = {.config_yaml = t->place->config_yaml,
                                          .trace = t->place->trace,
                                          .card = t->config->device.name,
                                          .data = t->data,
                                          .context = t->config->train.context,
                                          .model_path = t->config->model.path};
    TRY(agreement_make(t->env, &facts, &agreement));
    enum status st = agreement_check(&agreement, t->session.comm);
    agreement_free(&agreement);
    if (st == STATUS_CONFIG) /* all know it, and part without a word */
        session_destroy(&t->session);
    return st;
}

/* Ranks meet before anything that may fail on one of them alone. */
static enum status meet(struct trainer *t)
{
    const struct run_config *config = t->config;
    TRY(session_join(t->env, run_place(config), t->ranks, &t->session));
    TRY(tracing_start(t->env, t->place->trace, config, &t->tracing));
    TRY(dataset_create(t->env, &config->data, config->tokenizer, config->model.vocab,
                       config->train.context, (uint64_t)config->train.seed, &t->data));
    if (t->session.comm)
        TRY(check_agreement(t));
    if (speaks(t)) {
        fingerprint_take(t->env, run_place(config).backend, config->device.name, &t->print);
        TRY(agreement_print_data(t->env, t->data, config->train.context, &t->data_print));
    }
    if (t->ranks == NULL || t->ranks->hub == NULL)
        footprint_start(&t->footprint, t->env->mem);
    return STATUS_OK;
}

/* Everything a step needs, and the folder only when all of it is there. */
static enum status build_parts(struct trainer *t)
{
    const struct run_config *config = t->config;
    const struct zero_config store = trainer_store_config(config);
    bool holds;
    TRY(meet(t));
    TRY(path_join(t->env, t->place->folder, "checkpoints", &t->checkpoints));
    TRY(take_folder(t, &holds));
    TRY(session_fill(&config->model, &store, &t->session));
    TRY(engine_create(t->session.ops, t->session.stream, model_graph(t->session.model),
                      t->session.zero, &config->engine, &t->engine));
    TRY(fill_state(t, holds));
    if (config->train.sample_every > 0)
        TRY(sampler_create(t->env, config, &t->session, &t->sampler));
    TRY(pace_create(t->env, &t->pace));
    TRY(open_saves(t));
    return open_folder(t);
}

static enum status build(struct trainer *t)
{
    TRY(agree(t, build_parts(t)));
    return tracing_align(&t->tracing, t->session.comm);
}

static void tear_down(struct trainer *t)
{
    metrics_destroy(t->metrics);
    run_saves_close(&t->saves);
    run_lock_release(t->lock);
    mem_free(t->env, t->checkpoints);
    pace_destroy(t->pace);
    sampler_destroy(t->sampler);
    engine_destroy(t->engine);
    session_destroy(&t->session);
    dataset_destroy(t->data);
    tracing_stop(&t->tracing);
}

static int64_t step_tokens(const struct trainer *t)
{
    return t->config->train.global_batch * t->config->train.context;
}

static void tell_ready(struct trainer *t)
{
    int64_t train_tokens = dataset_train_tokens(t->data);
    double planned = (double)t->config->train.steps * (double)step_tokens(t);
    struct trainer_facts facts = {.config = t->config,
                                  .folder = t->place->folder,
                                  .parameters = t->summary->parameters,
                                  .train_tokens = train_tokens,
                                  .val_tokens = dataset_eval_tokens(t->data),
                                  .step_tokens = step_tokens(t),
                                  .flops_per_token = t->flops_per_token,
                                  .epochs = planned / (double)train_tokens,
                                  .first_step = t->first_step,
                                  .held = &t->held,
                                  .ranks = zero_roster(t->session.zero)->size,
                                  .comm = t->session.comm ? comm_backend_name(t->session.comm) : "",
                                  .device = device_backend(t->session.device),
                                  .card = t->config->device.name};
    if (speaks(t) && t->callbacks->ready != NULL)
        t->callbacks->ready(t->callbacks->user, &facts);
}

/* --- for who waits, and for the trace ------------------------------------------------------- */

/* What the host turns to: "step 12" or "evaluation after step 12". */
static void turn_to(struct trainer *t, const char *what)
{
    char label[64];
    snprintf(label, sizeof label, "%s%" PRId64, what, t->step);
    engine_label(t->engine, label);
    if (t->session.comm)
        comm_note(t->session.comm, label);
}

static void draw(struct trainer *t, double start, const char *name, int64_t number)
{
    trace_end(t->env->trace, start,
              &(struct trace_span){.lane = TRACE_HOST, .name = name, .number = number});
}

/* --- one step ------------------------------------------------------------------------------- */

static enum status fill_batches(struct trainer *t)
{
    const struct train_config *train = &t->config->train;
    uint64_t first = (uint64_t)t->done.samples;
    for (int64_t round = 0; round < engine_rounds(t->engine); round++) {
        int32_t *tokens, *labels;
        int64_t m = engine_micro_batch(t->engine, round);
        uint64_t sample = first + (uint64_t)(m * train->micro_batch);
        if (m < 0)
            continue; /* idle */
        engine_batch(t->engine, round, &tokens, &labels);
        for (int64_t row = 0; row < train->micro_batch; row++) {
            int64_t at = row * train->context;
            TRY(dataset_sample(t->data, sample++, tokens + at, labels + at));
        }
    }
    return STATUS_OK;
}

/* A step whose loss or gradient is not finite has changed nothing; too many in a row end the
 * run. */
static enum status note_skip(struct trainer *t, const struct engine_result *result)
{
    const struct unit_graph *graph = model_graph(t->session.model);
    t->summary->skipped = ++t->done.skipped;
    if (result->overflow) { /* how the scale is found: counts as a fault only at its floor */
        log_warn(t->env,
                 "step %" PRId64 " skipped: the gradient of %s overflows with loss scale %g; the "
                 "next step's is %g",
                 t->step, graph->tensors[result->bad_tensor].name, result->loss_scale,
                 result->next_loss_scale);
        return STATUS_OK;
    }
    t->done.skips_in_row++;
    if (result->bad_tensor >= 0)
        log_warn(t->env,
                 "step %" PRId64 " skipped: the gradient of %s is not finite at element %" PRId64
                 " (loss %g)",
                 t->step, graph->tensors[result->bad_tensor].name, result->bad_index, result->loss);
    else
        log_warn(t->env, "step %" PRId64 " skipped: the loss is %g", t->step, result->loss);
    if (t->done.skips_in_row < t->config->train.max_skips)
        return STATUS_OK;
    return FAIL(t->env, DIVERGED,
                "%" PRId64
                " steps in a row were skipped (train.max_skips), the last is step %" PRId64
                "; lower train.lr or raise train.warmup",
                t->done.skips_in_row, t->step);
}

static void add_traffic(struct zero_traffic *sum, const struct zero_traffic *more, int sign)
{
    sum->gather += sign * more->gather;
    sum->reduce += sign * more->reduce;
    sum->control += sign * more->control;
    sum->in_flight += sign * more->in_flight;
    sum->waited += sign * more->waited;
}

/* What was sent since the last call, for steps. */
static struct zero_traffic count_traffic(struct trainer *t)
{
    struct zero_traffic now = zero_traffic(t->session.zero), more = now;
    add_traffic(&more, &t->traffic, -1);
    add_traffic(&t->summary->traffic, &more, 1);
    t->traffic = now;
    return more;
}

static struct zero_traffic step_traffic(struct trainer *t)
{
    struct zero_traffic step = count_traffic(t);
    add_traffic(&step, &t->carried, 1);
    t->carried = (struct zero_traffic){0};
    return step;
}

/* Something else than a step follows: what the step has left under way comes in first. */
static enum status set_apart(struct trainer *t)
{
    TRY(zero_settle(t->session.zero));
    struct zero_traffic more = count_traffic(t);
    add_traffic(&t->carried, &more, 1);
    return STATUS_OK;
}

static void end_apart(struct trainer *t)
{
    t->traffic = zero_traffic(t->session.zero);
}

static void describe_step(struct trainer *t, const struct engine_result *result, double lr,
                          double start, double end, struct trainer_step *step)
{
    double rate = (double)step_tokens(t) / (end - start);
    double peak = run_peak(t->config, zero_roster(t->session.zero)->workers);
    int64_t steps = t->config->train.steps;
    bool scaled = zero_wants_scaling(t->session.zero);
    pace_add(t->pace, end - start, end);
    *step = (struct trainer_step){.step = t->step,
                                  .steps = steps,
                                  .tokens = t->done.tokens,
                                  .loss = result->loss,
                                  .grad_norm = result->grad_norm,
                                  .lr = lr,
                                  .seconds = end - start,
                                  .tokens_per_second = rate,
                                  .mfu = peak > 0 ? rate * t->flops_per_token / peak : NAN,
                                  .eta_seconds = pace_left(t->pace, steps - t->step, end),
                                  .skipped = result->skipped,
                                  .loss_scale = scaled ? result->loss_scale : NAN,
                                  .held = &t->held,
                                  .resident_bytes = t->footprint.resident_bytes,
                                  .ranks = zero_roster(t->session.zero)->size,
                                  .traffic = step_traffic(t)};
}

static void note_progress(struct trainer *t, const struct engine_result *result)
{
    struct checkpoint_progress *done = &t->done;
    done->step = t->step;
    done->samples += t->config->train.global_batch;
    done->tokens += step_tokens(t);
    done->scaled = zero_wants_scaling(t->session.zero);
    done->scale = engine_loss_scale(t->engine);
    if (!result->skipped) {
        done->updates++;
        done->skips_in_row = 0;
        done->loss = result->loss;
    }
    t->summary->steps = done->step;
    t->summary->tokens = done->tokens;
    t->summary->loss = done->loss;
}

static enum status run_step(struct trainer *t, struct engine_result *result,
                            struct trainer_step *step)
{
    double start = clock_seconds(), lr = schedule_lr(&t->schedule, t->step);
    double traced = trace_begin(t->env->trace);
    turn_to(t, "step ");
    TRY(fill_batches(t));
    draw(t, traced, "batches", 0);
    TRY(engine_step(t->engine, t->done.updates + 1, lr, result));
    draw(t, traced, "step", t->step);
    footprint_look(&t->footprint, t->env->mem);
    note_progress(t, result);
    describe_step(t, result, lr, start, clock_seconds(), step);
    t->longest_step = step->seconds > t->longest_step ? step->seconds : t->longest_step;
    if (speaks(t) && t->callbacks->step != NULL)
        t->callbacks->step(t->callbacks->user, step);
    return STATUS_OK;
}

/* --- between steps -------------------------------------------------------------------------- */

static bool due(const struct trainer *t, int64_t every)
{
    return t->step == t->config->train.steps || (every > 0 && t->step % every == 0);
}

/* A vote: one rank that was told to stop stops all of them at the same place. */
static bool keep_going(void *user, int64_t done, int64_t total)
{
    struct trainer *t = user;
    int64_t stop = (t->callbacks->should_stop && t->callbacks->should_stop(t->callbacks->user)) ||
                   deadline_over(&t->deadline, 2 * t->longest_step + 2 * t->saves.seconds);
    (void)done, (void)total;
    return engine_sum(t->engine, stop, &stop) == STATUS_OK && stop == 0;
}

/* STATUS_STOPPED when the user would not wait for its end. */
static enum status evaluate(struct trainer *t, struct evaluation *val)
{
    const struct train_config *train = &t->config->train;
    double traced = trace_begin(t->env->trace);
    turn_to(t, "evaluation after step ");
    TRY(set_apart(t));
    TRY(evaluate_dataset(t->env, t->engine, t->data, train->micro_batch, train->context,
                         train->eval_batches, keep_going, t, val));
    draw(t, traced, "evaluation", 0);
    footprint_look(&t->footprint, t->env->mem);
    end_apart(t);
    t->summary->val = *val;
    if (speaks(t) && t->callbacks->eval != NULL)
        t->callbacks->eval(t->callbacks->user, t->step, val);
    return STATUS_OK;
}

static enum status take_sample(struct trainer *t)
{
    struct trainer_sample sample;
    turn_to(t, "text sample after step ");
    TRY(set_apart(t));
    TRY(sampler_run(t->sampler, t->step, &sample));
    footprint_look(&t->footprint, t->env->mem);
    end_apart(t);
    if (!speaks(t))
        return STATUS_OK;
    if (t->callbacks->sample != NULL)
        t->callbacks->sample(t->callbacks->user, &sample);
    return metrics_sample(t->metrics, &sample);
}

/* One step with all that belongs to it. */
static enum status advance(struct trainer *t)
{
    struct engine_result result;
    struct trainer_step step;
    struct evaluation val;
    bool evaluated = false;
    t->step++;
    TRY(run_step(t, &result, &step));
    enum status st = result.skipped ? note_skip(t, &result) : STATUS_OK;
    if (st == STATUS_OK && dataset_eval_count(t->data) > 0 && due(t, t->config->train.eval_every)) {
        st = evaluate(t, &val);
        evaluated = st == STATUS_OK;
    }
    /* The record of the step is written whatever came after it. */
    enum status written =
        speaks(t) ? metrics_step(t->metrics, &step, evaluated ? &val : NULL) : STATUS_OK;
    TRY(st);
    TRY(written);
    if (t->sampler != NULL && due(t, t->config->train.sample_every))
        return take_sample(t);
    return STATUS_OK;
}

static enum status write_trace(struct trainer *t, bool over)
{
    return tracing_step_ends(&t->tracing, t->step, over, zero_roster(t->session.zero)->rank,
                             t->place->folder);
}

/* What follows a step and its evaluation. */
static enum status keep_state(struct trainer *t)
{
    const struct run_config *config = t->config;
    run_saves_look(&t->saves);
    if (!checkpoint_due(&config->checkpoint, t->step, config->train.steps))
        return STATUS_OK;
    double traced = trace_begin(t->env->trace);
    turn_to(t, "checkpoint after step ");
    TRY(run_saves_begin(&t->saves, &t->done));
    draw(t, traced, "checkpoint", 0);
    footprint_look(&t->footprint, t->env->mem);
    return STATUS_OK;
}

static bool at_stop(const struct trainer *t)
{
    int64_t stop = t->config->train.stop_at;
    return stop > 0 && t->step >= stop;
}

static enum status loop(struct trainer *t)
{
    while (t->step < t->config->train.steps) {
        if (at_stop(t))
            return STATUS_STOPPED;
        if (!keep_going(t, 0, 0))
            return t->session.comm && comm_status(t->session.comm) != STATUS_OK
                       ? comm_status(t->session.comm)
                       : STATUS_STOPPED;
        tracing_step_begins(&t->tracing, t->step + 1);
        TRY(advance(t));
        TRY(write_trace(t, false));
        TRY(keep_state(t));
    }
    return STATUS_OK;
}

/* --- the end -------------------------------------------------------------------------------- */

/* What the worst rank holds, and what one rank alone would. */
static enum status note_state(struct trainer *t)
{
    struct trainer_summary *s = t->summary;
    footprint_look(&t->footprint, t->env->mem);
    TRY(footprint_compare(&t->footprint, false, t->env, t->session.comm, &t->held));
    s->ranks = zero_roster(t->session.zero)->size;
    s->state_bytes = t->held.state_bytes;
    s->whole_bytes = (size_t)unit_graph_count(model_graph(t->session.model)) * 4 * sizeof(float);
    s->held = t->held;
    return STATUS_OK;
}

static bool is_stop(enum status st)
{
    return st == STATUS_STOPPED || st == STATUS_SAVED;
}

static void note_end(struct trainer *t, enum status st, double seconds)
{
    struct trainer_summary *summary = t->summary;
    summary->end = st == STATUS_OK         ? "done"
                   : is_stop(st)           ? "stopped"
                   : st == STATUS_DIVERGED ? "diverged"
                                           : "failed";
    if (st != STATUS_OK && !is_stop(st))
        snprintf(summary->error, sizeof summary->error, "%s", log_first_error(t->env->log));
    summary->seconds = seconds;
    summary->tokens_per_second = (double)step_tokens(t) / pace_median(t->pace);
}

static void tell_stop(struct trainer *t, bool begun)
{
    if (!begun)
        log_warn(t->env, "stopped before the first step: nothing is saved");
    else
        log_warn(t->env,
                 "stopped after step %" PRId64 ": all of it is in '%s'; the same command goes on "
                 "from there",
                 t->step, t->summary->checkpoint);
}

/* Save unless the run broke in the middle; the state of a stopped or diverged run is sound. */
static enum status finish(struct trainer *t, enum status st, double seconds)
{
    bool sound = st == STATUS_OK || st == STATUS_STOPPED || st == STATUS_DIVERGED;
    bool begun = st == STATUS_OK || t->step > 0, moved = t->step > t->first_step;
    tracing_close(&t->tracing);
    if (sound)
        set_apart(t); /* a failure shows when the state is saved */
    turn_to(t, "checkpoint after step ");
    enum status saved = sound && begun ? run_saves_finish(&t->saves, &t->done) : STATUS_OK;
    footprint_look(&t->footprint, t->env->mem);
    if (sound && saved == STATUS_OK) /* all ranks are here */
        saved = footprint_compare(&t->footprint, true, t->env, t->session.comm, &t->summary->held);
    if (st == STATUS_STOPPED && saved == STATUS_OK && speaks(t))
        tell_stop(t, begun);
    if (st == STATUS_STOPPED && begun)
        st = STATUS_SAVED;
    enum status traced = write_trace(t, true);
    if (saved != STATUS_OK || st == STATUS_OK)
        st = saved != STATUS_OK ? saved : traced;
    note_end(t, st, seconds);
    if (!speaks(t) || (t->first_step > 0 && !moved)) /* what is there tells more */
        return st;
    enum status written = trainer_summary_write(t->env, t->place->folder, t->summary);
    return st != STATUS_OK ? st : written;
}

enum status trainer_run(struct env *env, const struct run_config *config,
                        const struct session_ranks *ranks, const struct trainer_place *place,
                        const struct trainer_callbacks *callbacks, struct trainer_summary *summary)
{
    struct trainer t = {.env = env,
                        .config = config,
                        .ranks = ranks,
                        .place = place,
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
        tell_ready(&t);
        if (st == STATUS_OK)
            st = zero_settle(t.session.zero); /* the first parameters are on their way */
        end_apart(&t);
        double start = clock_seconds();
        if (st == STATUS_OK && is_complete(&t) && speaks(&t))
            log_info(env, "the run in '%s' is complete: step %" PRId64 " of %" PRId64,
                     place->folder, t.step, config->train.steps);
        st = st == STATUS_OK ? loop(&t) : st;
        st = finish(&t, st, clock_seconds() - start);
        if (st != STATUS_OK && !is_stop(st) && st != STATUS_DIVERGED)
            tell_failure(&t, st);
    }
    tear_down(&t);
    return st;
}
