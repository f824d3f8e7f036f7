#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include "base/file.h"
#include "cli/batch/batch.h"
#include "cli/json_out.h"
#include "cli/plot.h"

/* --- for people ----------------------------------------------------------------------------- */

/* The steps of the run's own batch over the same tokens. */
static int64_t run_steps(const struct batch *batch)
{
    for (int i = 0; i < batch->count; i++)
        if (batch->rungs[i].batch == batch->run_batch)
            return batch->rungs[i].steps;
    return 0;
}

static const char *verdict_of(const struct batch *batch, int i)
{
    const struct batch_rung *rung = &batch->rungs[i];
    return i == batch->critical ? "critical"
           : rung->passes       ? "ok"
           : rung->diverged     ? "diverged"
                                : "worse";
}

static void print_table(struct console *console, const struct batch *batch)
{
    char tokens[32];
    console_line(console, "\n%s%9s %9s %10s %7s %9s %9s %12s  verdict%s",
                 console_style(console, STYLE_BOLD), "sequences", "tokens", "lr", "steps", "loss",
                 "excess", "steps saved", console_style(console, STYLE_PLAIN));
    for (int i = 0; i < batch->count; i++) {
        const struct batch_rung *rung = &batch->rungs[i];
        console_line(
            console, "%9" PRId64 " %9s %10.3e %7" PRId64 " %9.4f %9.4f %12" PRId64 "  %s%s",
            rung->batch, text_human_count(tokens, (double)(rung->batch * batch->context)), rung->lr,
            rung->steps, rung->loss, rung->excess, run_steps(batch) - rung->steps,
            verdict_of(batch, i), rung->batch == batch->run_batch ? ", the run's own batch" : "");
    }
    if (batch->held_out)
        console_line(console, "loss: held out, after the last step of the rung");
    else
        console_line(console,
                     "loss: of training, mean over the last %s tokens (there is no held-out data)",
                     text_human_count(tokens, (double)(batch_window(batch) * batch->context)));
    console_line(console,
                 "excess: over the lowest loss of this batch and the smaller ones; at "
                 "most %g passes",
                 batch->tolerance);
}

static void print_plot(struct cli *cli, const struct batch *batch)
{
    struct console *console = cli->console;
    struct plot_point points[BATCH_RUNGS];
    struct text text;
    for (int i = 0; i < batch->count; i++)
        points[i] = (struct plot_point){(double)batch->rungs[i].batch, batch->rungs[i].loss};
    struct plot plot = plot_on(console, 72, 10);
    plot.line = plot.marks = points;
    plot.line_count = plot.mark_count = batch->count;
    plot.log_x = true;
    text_init(&text, cli->env);
    plot_draw(&plot, &text);
    if (text.bytes > 0) {
        console_line(console, "\nloss by sequences per step, on a logarithmic axis");
        console_write(console, text_string(&text), text.bytes);
    }
    text_free(&text);
}

/* How the critical batch is bounded by the ladder: "at least" if the largest rung passes, "at most"
 * if only the smallest does. */
static const char *bound_of(const struct batch *batch)
{
    return batch->critical == batch->count - 1 ? "at least" : batch->critical == 0 ? "at most" : "";
}

/* train.lr for a run whose schedule is scaled to the critical batch. */
static double peak_of(const struct batch *batch)
{
    double ratio = (double)batch->rungs[batch->critical].batch / (double)batch->run_batch;
    return batch->peak * batch_factor(batch->rule, ratio);
}

static void print_advice(struct console *console, const struct batch *batch)
{
    char line[512], tokens[32];
    if (batch->critical < 0) {
        console_fact(console, "critical",
                     "not known: every rung diverged; try --lr-rule=none or "
                     "an earlier --checkpoint");
        return;
    }
    const struct batch_rung *rung = &batch->rungs[batch->critical], *next = rung + 1;
    const char *bound = bound_of(batch);
    int used = snprintf(line, sizeof line, "%s%s%" PRId64 " sequence%s, %s tokens", bound,
                        *bound ? " " : "", rung->batch, rung->batch == 1 ? "" : "s",
                        text_human_count(tokens, (double)(rung->batch * batch->context)));
    if (batch->critical == batch->count - 1)
        snprintf(line + used, sizeof line - (size_t)used,
                 ", the largest that was tried; add larger ones with --batches and another --out");
    else if (next->diverged)
        snprintf(line + used, sizeof line - (size_t)used, "; %" PRId64 " diverged", next->batch);
    else
        snprintf(line + used, sizeof line - (size_t)used, "; %" PRId64 " costs %.4f nats",
                 next->batch, next->excess);
    console_fact(console, "critical", line);
    if (isfinite(batch->noise_scale)) {
        snprintf(line, sizeof line, "scale (B_simple) %.3g sequences at step %" PRId64,
                 batch->noise_scale, batch->step);
        console_fact(console, "noise", line);
    }
    snprintf(line, sizeof line,
             "--train.global_batch=%" PRId64 " --train.lr=%.4g%s (rule %s; the schedule keeps its "
             "shape)",
             rung->batch, peak_of(batch), batch->ramped ? " --train.batch_ramp=" : "",
             batch_rule_words[batch->rule]);
    console_fact(console, "set", line);
}

/* A rung that fails below one that passes: the differences are of the size of the noise. */
static void warn_gaps(struct env *env, const struct batch *batch)
{
    for (int i = 0; i < batch->critical; i++)
        if (!batch->rungs[i].passes) {
            log_warn(env,
                     "batch %" PRId64 " fails although %" PRId64
                     " passes: the losses are noisy; raise --tokens or --tolerance",
                     batch->rungs[i].batch, batch->rungs[batch->critical].batch);
            return;
        }
}

void batch_show(struct cli *cli, const struct batch *batch)
{
    print_table(cli->console, batch);
    print_plot(cli, batch);
    console_line(cli->console, "%s", "");
    print_advice(cli->console, batch);
    console_fact(cli->console, "folder", batch->out);
    warn_gaps(cli->env, batch);
}

/* --- for programs --------------------------------------------------------------------------- */

static void add_rungs(struct json_out *json, const struct batch *batch)
{
    json_out_open(json, "rungs", '[');
    for (int i = 0; i < batch->count; i++) {
        const struct batch_rung *rung = &batch->rungs[i];
        json_out_open(json, NULL, '{');
        json_out_int(json, "batch", rung->batch);
        json_out_int(json, "batch_tokens", rung->batch * batch->context);
        json_out_real(json, "lr", rung->lr);
        json_out_int(json, "steps", rung->steps);
        json_out_int(json, "tokens", rung->steps * rung->batch * batch->context);
        json_out_int(json, "steps_saved", run_steps(batch) - rung->steps);
        json_out_real(json, "loss", rung->loss);
        json_out_real(json, "excess", rung->excess);
        json_out_real(json, "val_loss", rung->val_loss);
        json_out_real(json, "train_loss", rung->mean_loss);
        json_out_bool(json, "diverged", rung->diverged);
        json_out_bool(json, "passes", rung->passes);
        json_out_real(json, "seconds", rung->seconds);
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
}

static void add_result(struct json_out *json, const struct batch *batch)
{
    if (batch->critical < 0)
        return;
    const struct batch_rung *rung = &batch->rungs[batch->critical];
    json_out_int(json, "critical_batch", rung->batch);
    json_out_int(json, "critical_tokens", rung->batch * batch->context);
    json_out_string(json, "critical_bound", bound_of(batch));
    json_out_open(json, "set", '{');
    json_out_int(json, "train.global_batch", rung->batch);
    json_out_real(json, "train.lr", peak_of(batch));
    if (batch->ramped) /* its sizes belong to the old batch */
        json_out_string(json, "train.batch_ramp", "");
    json_out_close(json, '}');
}

enum status batch_write(struct cli *cli, const struct batch *batch, bool print)
{
    struct json_out json;
    char *path;
    json_out_begin(&json, cli->env);
    json_out_string(&json, "run", batch->run);
    json_out_string(&json, "checkpoint", batch->checkpoint);
    json_out_int(&json, "step", batch->step);
    json_out_string(&json, "folder", batch->out);
    json_out_int(&json, "run_batch", batch->run_batch);
    json_out_int(&json, "context", batch->context);
    json_out_real(&json, "run_lr", batch->peak);
    json_out_real(&json, "lr_at_step", batch->rate);
    json_out_string(&json, "lr_rule", batch_rule_words[batch->rule]);
    json_out_real(&json, "tolerance", batch->tolerance);
    json_out_int(&json, "tokens", batch->sequences * batch->context);
    json_out_string(&json, "compared", batch->held_out ? "val_loss" : "train_loss");
    json_out_int(&json, "train_loss_tokens", batch_window(batch) * batch->context);
    if (isfinite(batch->noise_scale))
        json_out_real(&json, "noise_scale", batch->noise_scale);
    add_rungs(&json, batch);
    add_result(&json, batch);
    json_out_close(&json, '}');
    text_add(&json.text, "\n");
    enum status st = path_join(cli->env, batch->out, "batch.json", &path);
    if (st == STATUS_OK) {
        st = file_write_text(cli->env, path, &json.text);
        mem_free(cli->env, path);
    }
    if (st == STATUS_OK && print)
        console_write(cli->console, text_string(&json.text), json.text.bytes);
    text_free(&json.text);
    return st;
}
