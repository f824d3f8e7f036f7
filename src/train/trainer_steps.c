/* trainer_steps -- the loop. A step reads the next samples of the dataset, in order, as many as its
 * batch has (batch_ramp.h), as micro-batches of the engine. Everything else (evaluation, text
 * samples, records, checkpoints) only reads the state. So the weights after a step depend on the
 * configuration alone, and `struct checkpoint_progress` with the state of the store is all that a
 * run needs to resume.
 *
 * A skipped step consumes its samples and its step of the schedule, but is no update: AdamW's bias
 * correction counts updates. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "base/clock.h"
#include "base/progress.h"
#include "train/models/model_weights.h"
#include "train/evaluate.h"
#include "train/trainer_impl.h"

/* --- phase and trace ------------------------------------------------------- */

struct scope trainer_begin_phase(struct trainer *t, const char *words, const char *span)
{
    struct scope phase = {.kind = SCOPE_PHASE,
                          .words = words,
                          .step = t->step,
                          .span = {.lane = &trace_lane_host, .name = span}};
    scope_begin(engine_scopes(t->engine), &phase);
    return phase;
}

static void end_scope(struct trainer *t, const struct scope *scope)
{
    scope_end(engine_scopes(t->engine), scope);
}

/* --- one step ------------------------------------------------------------------------------- */

static enum status fill_batches(struct trainer *t)
{
    double start = clock_seconds();
    const struct train_config *train = &t->config->train;
    t->batch = batch_ramp_at(&t->config->ramp, t->done.tokens);
    TRY(engine_set_micro_batches(t->engine, t->batch / train->micro_batch));
    struct scope scope = {.span = {.lane = &trace_lane_host, .name = "batches"}};
    uint64_t first = (uint64_t)t->done.samples;
    scope_begin(engine_scopes(t->engine), &scope);
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
    t->fill_seconds = clock_seconds() - start;
    end_scope(t, &scope);
    return STATUS_OK;
}

/* ", first in micro-batch 5, samples 40 to 47, of rank 1": where the loss of the last step was not
 * finite first; "" if micro_batch < 0. */
static const char *describe_origin(const struct trainer *t, int64_t micro_batch, char *out,
                                   size_t bytes)
{
    const struct mesh *mesh = &t->session.spread.mesh;
    const struct train_config *train = &t->config->train;
    int64_t first = t->done.samples - t->batch + micro_batch * train->micro_batch;
    int worker = (int)(micro_batch % zero_roster(t->session.zero)->workers);
    int together = mesh->pp * mesh->tp, rank = worker * together;
    char ranks[48];
    if (micro_batch < 0)
        return "";
    snprintf(ranks, sizeof ranks, together > 1 ? "ranks %d to %d" : "rank %d", rank,
             rank + together - 1);
    snprintf(out, bytes,
             ", first in micro-batch %" PRId64 ", samples %" PRId64 " to %" PRId64 ", of %s",
             micro_batch, first, first + train->micro_batch - 1, ranks);
    return out;
}

/* Skipped steps change nothing: if all were skipped, the weights are still those of model.path, and
 * no setting of this run is to blame. */
static bool weights_are_given(const struct trainer *t)
{
    return t->config->source && t->done.skipped == t->step;
}

/* A step whose labels are all masked changes nothing, and is no sign of divergence. A run that has
 * seen no label at all ends. */
static enum status note_no_labels(struct trainer *t)
{
    t->summary->skipped = ++t->done.skipped;
    if (t->done.skipped == t->step && t->step >= t->config->train.max_skips)
        return FAIL(t->env, FORMAT,
                    "all labels of the first %" PRId64 " steps are masked (train.max_skips); check "
                    "the data, or give a step more sequences (train.global_batch)",
                    t->step);
    if (!t->step_empty)
        log_warn(t->env,
                 "step %" PRId64 " skipped: all its labels are masked; the run continues (logged "
                 "once); check the data, or give a step more sequences (train.global_batch)",
                 t->step);
    t->step_empty = true;
    return STATUS_OK;
}

/* A step whose loss or gradient is not finite changes nothing. Too many in a row end the run, and
 * so does a loss that is not finite in the last step: then the weights are not, either. */
static enum status note_skip(struct trainer *t, const struct engine_result *result)
{
    const struct unit_graph *graph = model_graph(t->session.model);
    char origin[160];
    if (result->count == 0)
        return note_no_labels(t);
    t->summary->skipped = ++t->done.skipped;
    if (result->overflow) { /* normal while the scale adapts; a fault only at its floor */
        log_warn(t->env,
                 "step %" PRId64 " skipped: the gradient of %s overflows with loss scale %g; the "
                 "next step uses %g",
                 t->step, graph->tensors[result->bad_tensor].name, result->loss_scale,
                 result->next_loss_scale);
        return STATUS_OK;
    }
    t->done.skips_in_row++;
    bool at_floor = run_type(t->config) == DTYPE_F16 && result->loss_scale <= LOSS_SCALE_FLOOR;
    if (result->bad_tensor >= 0)
        log_warn(t->env,
                 "step %" PRId64 " skipped: the gradient of %s is not finite at element %" PRId64
                 " (loss %g%s%s)",
                 t->step, graph->tensors[result->bad_tensor].name, result->bad_index, result->loss,
                 describe_origin(t, result->bad_micro_batch, origin, sizeof origin),
                 at_floor ? ", loss scale at its floor" : "");
    else
        log_warn(t->env, "step %" PRId64 " skipped: the loss is %g%s", t->step, result->loss,
                 describe_origin(t, result->bad_micro_batch, origin, sizeof origin));
    bool at_end = t->step == t->config->train.steps && !isfinite(result->loss);
    if (t->done.skips_in_row < t->config->train.max_skips && !at_end)
        return STATUS_OK;
    const char *advice = weights_are_given(t) && !isfinite(result->loss)
                             ? "check the weights of model.path: the loss is not finite with "
                               "them; " MODEL_BAD_WEIGHTS
                         : at_floor
                             ? "lower train.lr or raise train.warmup, or use precision.mode bf16"
                             : "lower train.lr or raise train.warmup";
    return FAIL(t->env, DIVERGED,
                "%" PRId64 " steps in a row were skipped (%s), the last is step %" PRId64 "; %s",
                t->done.skips_in_row,
                at_end ? "and the run ends with a loss that is not finite" : "train.max_skips",
                t->step, advice);
}

/* The traffic since the last count, added to that of the run's steps. */
static struct traffic count_traffic(struct trainer *t)
{
    struct traffic now = engine_traffic(t->engine), more = now;
    traffic_add(&more, &t->traffic, -1);
    traffic_add(&t->summary->traffic, &more, 1);
    t->traffic = now;
    return more;
}

enum status trainer_suspend_steps(struct trainer *t)
{
    TRY(zero_settle(t->session.zero));
    struct traffic more = count_traffic(t);
    traffic_add(&t->carried, &more, 1);
    return STATUS_OK;
}

void trainer_resume_steps(struct trainer *t)
{
    t->traffic = engine_traffic(t->engine);
}

static void describe_step(struct trainer *t, const struct engine_result *result, double lr,
                          double start, double end, struct trainer_step *step)
{
    double rate = (double)trainer_step_tokens(t) / (end - start);
    const struct mesh *mesh = &t->session.spread.mesh;
    double peak = run_peak(t->config, zero_roster(t->session.zero)->workers * mesh->pp * mesh->tp);
    int64_t steps = t->config->train.steps;
    bool scaled = zero_wants_scaling(t->session.zero);
    struct traffic traffic = count_traffic(t);
    traffic_add(&traffic, &t->carried, 1);
    t->carried = (struct traffic){0};
    pace_add(t->pace, trainer_step_tokens(t), end - start, end);
    bool routed = t->routing && result->count > 0;
    if (routed)
        routing_read(t->routing, engine_statistics(t->engine), trainer_step_tokens(t));
    *step = (struct trainer_step){.step = t->step,
                                  .steps = steps,
                                  .tokens = t->done.tokens,
                                  .batch = t->config->ramp.count > 0 ? t->batch : 0,
                                  .loss = result->loss,
                                  .grad_norm = result->grad_norm,
                                  .lr = lr,
                                  .seconds = end - start,
                                  .tokens_per_second = rate,
                                  .mfu = peak > 0 ? rate * t->flops_per_token / peak : NAN,
                                  .eta_seconds = pace_left(t->pace, trainer_tokens_left(t), end),
                                  .skipped = result->skipped,
                                  .noise = t->done.noise,
                                  .loss_scale = scaled ? result->loss_scale : NAN,
                                  .held = &t->held,
                                  .resident_bytes = t->footprints.process.held_bytes,
                                  .gpu_bytes = t->footprints.gpu.held_bytes,
                                  .gauges = t->gauges.now,
                                  .ranks = t->session.spread.mesh.size,
                                  .traffic = traffic,
                                  .routing = routed ? t->routing : NULL,
                                  .meta_norm = routed ? result->meta_norm : NAN};
}

static void note_progress(struct trainer *t, const struct engine_result *result)
{
    struct checkpoint_progress *done = &t->done;
    done->step = t->step;
    done->evaluation_due = false;
    done->samples += t->batch;
    done->tokens += trainer_step_tokens(t);
    done->scaled = zero_wants_scaling(t->session.zero);
    done->scale = engine_loss_scale(t->engine);
    if (!result->skipped) {
        done->updates++;
        done->skips_in_row = 0;
        done->loss = result->loss;
        noise_scale_add(&done->noise, &result->noise);
    }
    t->summary->noise = done->noise;
    t->summary->steps = done->step;
    t->summary->tokens = done->tokens;
    t->summary->loss = done->loss;
}

static enum status run_step(struct trainer *t, struct engine_result *result,
                            struct trainer_step *step)
{
    double start = clock_seconds() - t->fill_seconds, lr = schedule_lr(&t->schedule, t->step);
    bool is_first = t->step == t->first_step + 1;
    struct scope phase = trainer_begin_phase(t, "step", "step");
    TRY(engine_step(t->engine, t->done.updates + 1, lr, result));
    phase.span.number = t->step;
    end_scope(t, &phase);
    footprints_look(&t->footprints, t->env->mem, is_first ? t->session.device : NULL);
    if (trainer_is_first(t))
        gauges_look(&t->gauges, t->session.device);
    note_progress(t, result);
    describe_step(t, result, lr, start, clock_seconds(), step);
    t->longest_step = step->seconds > t->longest_step ? step->seconds : t->longest_step;
    progress_expect(t->env,
                    3 * t->longest_step); /* the work of a whole step is queued on a GPU at once */
    if (trainer_is_first(t) && t->callbacks->step != NULL)
        t->callbacks->step(t->callbacks->user, step);
    return STATUS_OK;
}

/* --- between steps -------------------------------------------------------------------------- */

static bool due(const struct trainer *t, int64_t every)
{
    return t->step == t->config->train.steps || (every > 0 && t->step % every == 0);
}

/* A vote: one rank that was asked to stop, or cannot read its data, stops all at the same step. */
static bool keep_going(void *user, int64_t done, int64_t total, enum status read)
{
    struct trainer *t = user;
    t->data_status = read;
    int64_t stop = read != STATUS_OK ||
                   (t->callbacks->should_stop && t->callbacks->should_stop(t->callbacks->user)) ||
                   deadline_over(&t->deadline, 2 * t->longest_step + 2 * t->saves.seconds);
    (void)done, (void)total;
    return engine_vote(t->engine, stop, &stop) == STATUS_OK && stop == 0;
}

/* Without labels there is nothing to record. The run continues: its model must not be lost. */
static void warn_no_labels(struct trainer *t)
{
    if (trainer_is_first(t) && !t->eval_empty)
        log_warn(t->env,
                 "no evaluation after step %" PRId64
                 ": all labels of the held-out batches are masked; the run continues (logged "
                 "once); check data.val, or raise train.eval_batches",
                 t->step);
    t->eval_empty = true;
}

/* STATUS_STOPPED if the run was asked to stop before its end. val->tokens is 0 if there was nothing
 * to evaluate. */
static enum status evaluate(struct trainer *t, struct evaluation *val)
{
    const struct train_config *train = &t->config->train;
    struct scope phase = trainer_begin_phase(t, "evaluation after step", "evaluation");
    TRY(trainer_suspend_steps(t));
    enum status st = evaluate_dataset(t->engine, t->data, train->micro_batch, train->context,
                                      train->eval_batches, keep_going, t, val);
    TRY(t->data_status != STATUS_OK ? STATUS_STOPPED : st);
    end_scope(t, &phase);
    trainer_look(t);
    trainer_resume_steps(t);
    if (val->tokens == 0) {
        warn_no_labels(t);
        return STATUS_OK;
    }
    t->summary->val = *val;
    if (trainer_is_first(t) && t->callbacks->eval != NULL)
        t->callbacks->eval(t->callbacks->user, t->step, val);
    return STATUS_OK;
}

static enum status sample_text(struct trainer *t)
{
    struct trainer_sample sample;
    int64_t stopped;
    trainer_begin_phase(t, "text sample after step", NULL);
    TRY(trainer_suspend_steps(t));
    TRY(text_sampler_run(t->sampler, t->step, &sample, &stopped));
    trainer_look(t);
    trainer_resume_steps(t);
    if (!trainer_is_first(t))
        return STATUS_OK;
    if (stopped > 0) {
        /* An incomplete text is not recorded. The run continues: skipped steps decide whether it
         * has failed. */
        if (!t->sample_stopped)
            log_warn(t->env,
                     "no text sample after step %" PRId64 ": the logits of token %" PRId64
                     " are not finite; the run continues without such samples (logged once); %s",
                     t->step, stopped,
                     weights_are_given(t)
                         ? "check the weights of model.path: " MODEL_BAD_WEIGHTS
                         : "if steps are skipped too, lower train.lr or raise train.warmup");
        t->sample_stopped = true;
        return STATUS_OK;
    }
    if (t->callbacks->sample != NULL)
        t->callbacks->sample(t->callbacks->user, &sample);
    return metrics_sample(t->metrics, &sample);
}

/* One step with its evaluation, record and sample. */
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
        evaluated = st == STATUS_OK && val.tokens > 0;
        t->done.evaluation_due = st == STATUS_STOPPED;
    }
    /* The record of a step is written even if its evaluation failed. */
    enum status written =
        trainer_is_first(t) ? metrics_step(t->metrics, &step, evaluated ? &val : NULL) : STATUS_OK;
    TRY(st);
    TRY(written);
    if (t->sampler != NULL && due(t, t->config->train.sample_every))
        return sample_text(t);
    return STATUS_OK;
}

enum status trainer_evaluate_due(struct trainer *t)
{
    struct evaluation val;
    if (!trainer_owes_evaluation(t))
        return STATUS_OK;
    TRY(evaluate(t, &val));
    if (trainer_is_first(t) && val.tokens > 0)
        TRY(metrics_evaluation(t->metrics, t->step, &val));
    t->done.evaluation_due = false;
    t->evaluated_late = true;
    return STATUS_OK;
}

enum status trainer_write_trace(struct trainer *t, bool over)
{
    return tracing_step_ends(&t->tracing, t->step, over, t->session.spread.mesh.rank,
                             t->target->folder);
}

/* Save a checkpoint if one is due. */
static enum status save_if_due(struct trainer *t)
{
    const struct run_config *config = t->config;
    run_saves_look(&t->saves);
    progress_expect(t->env, 3 * t->saves.seconds);
    if (!checkpoint_due(&config->checkpoint, t->step, config->train.steps))
        return STATUS_OK;
    struct scope phase = trainer_begin_phase(t, "checkpoint after step", "checkpoint");
    TRY(run_saves_begin(&t->saves, &t->done));
    end_scope(t, &phase);
    trainer_look(t);
    return STATUS_OK;
}

bool trainer_at_stop(const struct trainer *t)
{
    int64_t stop = t->config->train.stop_at;
    return stop > 0 && t->step >= stop;
}

/* The data of a step is read before the ranks vote on the step: if one rank cannot read it, all
 * ranks still have the complete state of the last step, and save it. */
enum status trainer_loop(struct trainer *t)
{
    while (t->step < t->config->train.steps) {
        if (trainer_at_stop(t))
            return STATUS_STOPPED;
        tracing_step_begins(&t->tracing, t->step + 1);
        if (!keep_going(t, 0, 0, fill_batches(t)))
            return t->session.comm && comm_status(t->session.comm) != STATUS_OK
                       ? comm_status(t->session.comm)
                       : STATUS_STOPPED;
        TRY(advance(t));
        TRY(trainer_write_trace(t, false));
        TRY(save_if_due(t));
    }
    return STATUS_OK;
}
