/* trainer -- the loop. Step s (from 0) takes samples s * global_batch .. of the dataset, in
 * order, as micro-batches of the engine; what else happens (evaluation, text samples, records)
 * only reads. So the weights after a step depend on the configuration alone.
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
#include "train/metrics.h"
#include "train/model_file.h"
#include "train/pace.h"
#include "train/run_folder.h"
#include "train/sampler.h"
#include "train/session.h"
#include "train/tracing.h"
#include "zero/loss_scale.h"

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

    int64_t step;    /* the step that runs, from 1; afterwards how many were begun */
    int64_t updates; /* how many moved the parameters */
    int64_t skips_in_row;
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
                                .sum_type = run_sum_type(config)};
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

static enum status open_folder(struct trainer *t)
{
    if (!speaks(t))
        return STATUS_OK;
    TRY(run_folder_prepare(t->env, t->place->folder, t->place->fresh, &t->lock));
    TRY(write_config(t));
    return metrics_create(t->env, t->place->folder, t->place->config_yaml,
                          sampler_text_bytes(t->sampler), &t->metrics);
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
    if (t->ranks == NULL || t->ranks->hub == NULL)
        footprint_start(&t->footprint, t->env->mem);
    return STATUS_OK;
}

/* Everything a step needs, and the folder only when all of it is there. */
static enum status build_parts(struct trainer *t)
{
    const struct run_config *config = t->config;
    const struct zero_config store = trainer_store_config(config);
    TRY(meet(t));
    if (speaks(t))
        TRY(run_folder_check(t->env, t->place->folder, t->place->fresh));
    TRY(session_fill(&config->model, &store, &t->session));
    TRY(engine_create(t->session.ops, t->session.stream, model_graph(t->session.model),
                      t->session.zero, &config->engine, &t->engine));
    TRY(fill_parameters(t));
    if (config->train.sample_every > 0)
        TRY(sampler_create(t->env, config, &t->session, &t->sampler));
    TRY(pace_create(t->env, &t->pace));
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
    run_lock_release(t->lock);
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
    uint64_t first = (uint64_t)(t->step - 1) * (uint64_t)train->global_batch;
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
    t->summary->skipped++;
    if (result->overflow) { /* how the scale is found: counts as a fault only at its floor */
        log_warn(t->env,
                 "step %" PRId64 " skipped: the gradient of %s overflows with loss scale %g; the "
                 "next step's is %g",
                 t->step, graph->tensors[result->bad_tensor].name, result->loss_scale,
                 result->next_loss_scale);
        return STATUS_OK;
    }
    t->skips_in_row++;
    bool at_floor = run_type(t->config) == DTYPE_F16 && result->loss_scale <= LOSS_SCALE_FLOOR;
    if (result->bad_tensor >= 0)
        log_warn(t->env,
                 "step %" PRId64 " skipped: the gradient of %s is not finite at element %" PRId64
                 " (loss %g%s)",
                 t->step, graph->tensors[result->bad_tensor].name, result->bad_index, result->loss,
                 at_floor ? ", loss scale at its floor" : "");
    else
        log_warn(t->env, "step %" PRId64 " skipped: the loss is %g", t->step, result->loss);
    if (t->skips_in_row < t->config->train.max_skips)
        return STATUS_OK;
    return FAIL(t->env, DIVERGED,
                "%" PRId64
                " steps in a row were skipped (train.max_skips), the last is step %" PRId64
                "; lower train.lr or raise train.warmup%s",
                t->skips_in_row, t->step, at_floor ? ", or use precision.mode bf16" : "");
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
                                  .tokens = t->step * step_tokens(t),
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

static enum status run_step(struct trainer *t, struct engine_result *result,
                            struct trainer_step *step)
{
    double start = clock_seconds(), lr = schedule_lr(&t->schedule, t->step);
    double traced = trace_begin(t->env->trace);
    turn_to(t, "step ");
    TRY(fill_batches(t));
    draw(t, traced, "batches", 0);
    TRY(engine_step(t->engine, t->updates + 1, lr, result));
    draw(t, traced, "step", t->step);
    footprint_look(&t->footprint, t->env->mem);
    describe_step(t, result, lr, start, clock_seconds(), step);
    t->summary->steps = t->step;
    t->summary->tokens = step->tokens;
    if (!result->skipped) {
        t->updates++;
        t->skips_in_row = 0;
        t->summary->loss = result->loss;
    }
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
    int64_t stop = t->callbacks->should_stop && t->callbacks->should_stop(t->callbacks->user);
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

static enum status loop(struct trainer *t)
{
    while (t->step < t->config->train.steps) {
        if (!keep_going(t, 0, 0))
            return t->session.comm && comm_status(t->session.comm) != STATUS_OK
                       ? comm_status(t->session.comm)
                       : STATUS_STOPPED;
        tracing_step_begins(&t->tracing, t->step + 1);
        TRY(advance(t));
        TRY(write_trace(t, false));
    }
    return STATUS_OK;
}

/* --- the end -------------------------------------------------------------------------------- */

static enum status save_model(struct trainer *t)
{
    struct trainer_summary *summary = t->summary;
    char *folder, path[sizeof summary->checkpoint];
    TRY(path_join(t->env, t->place->folder, "checkpoints", &folder));
    int bytes = snprintf(path, sizeof path, "%s/step-%" PRId64, folder, t->step);
    enum status st = speaks(t) ? dir_create(t->env, folder) : STATUS_OK;
    mem_free(t->env, folder);
    if (st == STATUS_OK && bytes >= (int)sizeof path)
        st = FAIL(t->env, IO, "the run folder's name is too long");
    if (st == STATUS_OK)
        st = model_file_save(t->env, path, t->session.model, t->session.zero, t->config->tokenizer,
                             t->step);
    if (st == STATUS_OK)
        snprintf(summary->checkpoint, sizeof summary->checkpoint, "%s", path);
    return st;
}

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

static void note_end(struct trainer *t, enum status st, double seconds)
{
    struct trainer_summary *summary = t->summary;
    summary->end = st == STATUS_OK         ? "done"
                   : st == STATUS_STOPPED  ? "stopped"
                   : st == STATUS_DIVERGED ? "diverged"
                                           : "failed";
    if (st != STATUS_OK && st != STATUS_STOPPED)
        snprintf(summary->error, sizeof summary->error, "%s", log_first_error(t->env->log));
    summary->seconds = seconds;
    summary->tokens_per_second = (double)step_tokens(t) / pace_median(t->pace);
}

/* Save the model unless the run broke in the middle; the parameters of a stopped or diverged run
 * are sound. */
static enum status finish(struct trainer *t, enum status st, double seconds)
{
    bool sound = st == STATUS_OK || st == STATUS_STOPPED || st == STATUS_DIVERGED;
    bool begun = st == STATUS_OK || t->step > 0;
    tracing_close(&t->tracing);
    if (sound)
        set_apart(t); /* a failure shows when the model is saved */
    enum status saved = sound && begun ? save_model(t) : STATUS_OK;
    footprint_look(&t->footprint, t->env->mem);
    if (sound && saved == STATUS_OK) /* all ranks are here */
        saved = footprint_compare(&t->footprint, true, t->env, t->session.comm, &t->summary->held);
    if (sound && !begun && speaks(t))
        log_warn(t->env, "stopped before the first step: no model is saved");
    else if (st == STATUS_STOPPED && saved == STATUS_OK && speaks(t))
        log_warn(t->env,
                 "stopped after step %" PRId64
                 ": the model is in '%s'; the optimizer's state is not "
                 "saved, so this run cannot be continued",
                 t->step, t->summary->checkpoint);
    enum status traced = write_trace(t, true);
    if (saved != STATUS_OK || st == STATUS_OK)
        st = saved != STATUS_OK ? saved : traced;
    note_end(t, st, seconds);
    if (!speaks(t))
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
                        .schedule = run_schedule(config)};
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
        st = st == STATUS_OK ? loop(&t) : st;
        st = finish(&t, st, clock_seconds() - start);
        if (st != STATUS_OK && st != STATUS_STOPPED && st != STATUS_DIVERGED)
            tell_failure(&t, st);
    }
    tear_down(&t);
    return st;
}
