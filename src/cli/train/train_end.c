#include "cli/train/train_view.h"
#include <math.h>
#include <string.h>
#include "train/run/pace.h"
#include "cli/command.h"

/* --- memory --------------------------------------------------------------------------------- */

/* "1.2 GiB, with files being read or written 1.3 GiB; process 1.3 GiB, counted 1.2 GiB + 41.2 MiB
 * of runtime: 0.4 % more". The first figure is the plan's; only buffers for
 * files may add to it. */
static void describe_held(const struct trainer_summary *s, char *out, size_t bytes)
{
    const struct footprint_worst *held = &s->held;
    const struct footprint *there = train_view_held(held);
    double excess = 100 * footprint_excess(there);
    bool gpu = held->host_bytes > 0;
    char a[32], b[32], c[32];
    size_t used = (size_t)snprintf(out, bytes, "%s", text_human_bytes(a, (double)s->built_bytes));
    if (strcmp(a, text_human_bytes(b, (double)held->total_bytes)) != 0)
        used +=
            (size_t)snprintf(out + used, bytes - used, ", with files being read or written %s", b);
    if (isfinite(excess))
        used += (size_t)snprintf(
            out + used, bytes - used, "; %s %s, counted %s + %s%s of runtime: %.1f %% %s",
            gpu ? "GPU" : "process", text_human_bytes(a, (double)there->held_bytes),
            text_human_bytes(b, (double)there->accounted_bytes), gpu ? "about " : "",
            text_human_bytes(c, (double)there->runtime_bytes), fabs(excess),
            excess < 0 ? "less" : "more");
    train_view_elsewhere(held, out, bytes);
}

/* "per step 1.2 GiB to the GPU, 1.2 GiB from it". */
static void describe_moved(const struct trainer_summary *s, char *out, size_t bytes)
{
    static const char *const words[TRAFFIC_WAY_COUNT] = {[TRAFFIC_LINK_IN] = "to the GPU",
                                                         [TRAFFIC_LINK_OUT] = "from the GPU",
                                                         [TRAFFIC_DISK_READ] = "read from disk",
                                                         [TRAFFIC_DISK_WRITTEN] =
                                                             "written to disk"};
    double steps = (double)(s->steps - s->first_step);
    const char *before = "per step";
    size_t used = 0;
    char human[32];
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++) {
        if (s->traffic.moved[way] == 0 || used >= bytes)
            continue;
        used += (size_t)snprintf(out + used, bytes - used, "%s %s %s", before,
                                 text_human_bytes(human, (double)s->traffic.moved[way] / steps),
                                 words[way]);
        before = ",";
    }
}

/* --- for programs --------------------------------------------------------------------------- */

static void print_json(struct train_view *view, const struct trainer_summary *s, const char *folder)
{
    struct json_out *json = train_view_event(view, "end");
    json_out_string(json, "end", s->end);
    json_out_string(json, "folder", folder);
    json_out_string(json, "checkpoint", s->checkpoint);
    json_out_int(json, "steps", s->steps);
    json_out_int(json, "first_step", s->first_step);
    json_out_int(json, "tokens", s->tokens);
    json_out_int(json, "skipped", s->skipped);
    json_out_real(json, "loss", s->loss);
    if (s->noise.steps > 0)
        json_out_real(json, "noise_scale", noise_scale_value(&s->noise));
    json_out_real(json, "val_loss", s->val.tokens ? s->val.loss : NAN);
    json_out_real(json, "bits_per_byte", s->val.tokens ? s->val.bits_per_byte : NAN);
    json_out_real(json, "seconds", s->seconds);
    json_out_real(json, "tokens_per_second", s->tokens_per_second);
    if (s->save.bytes > 0) {
        json_out_int(json, "save_bytes", (int64_t)s->save.bytes);
        json_out_real(json, "save_seconds", s->save.seconds);
        json_out_real(json, "save_written", s->save.written);
        json_out_real(json, "save_stood", s->save.stood);
    }
    json_out_int(json, "peak_bytes", (int64_t)s->held.total_bytes);
    if (s->held.host_bytes > 0)
        json_out_int(json, "peak_host_bytes", (int64_t)s->held.host_bytes);
    if (s->held.disk_bytes > 0)
        json_out_int(json, "disk_bytes", (int64_t)s->held.disk_bytes);
    if (traffic_has_moved(&s->traffic))
        json_out_moved(json, "offload", s->traffic.moved);
    if (s->held.gpu.held_bytes > 0) {
        json_out_int(json, "gpu_bytes", (int64_t)s->held.gpu.held_bytes);
        json_out_int(json, "gpu_accounted_bytes", (int64_t)s->held.gpu.accounted_bytes);
        json_out_int(json, "gpu_runtime_estimate_bytes", (int64_t)s->held.gpu.runtime_bytes);
    }
    json_out_gauges(json, &s->gauges);
    if (s->held.process.held_bytes > 0) {
        json_out_int(json, "resident_bytes", (int64_t)s->held.process.held_bytes);
        json_out_int(json, "accounted_bytes", (int64_t)s->held.process.accounted_bytes);
        json_out_int(json, "runtime_bytes", (int64_t)s->held.process.runtime_bytes);
    }
    if (s->ranks > 1 && view->config)
        ranks_table_json(json, view->config, s);
    json_out_flush(json, view->cli->console);
}

/* --- for people ----------------------------------------------------------------------------- */

static void draw_curve(struct train_view *view)
{
    struct console *console = view->cli->console;
    struct text text;
    text_init(&text, view->cli->env);
    curve_draw(&view->losses, view->evals, view->eval_count, console, &text);
    if (text.bytes) {
        console_line(console, "\nloss by step%s",
                     view->eval_count == 0 ? ""
                     : console->ascii      ? " (o held out)"
                                           : " (● held out)");
        console_write(console, text_string(&text), text.bytes);
    }
    text_free(&text);
}

/* How to resume a run that was stopped. */
static void print_resume(struct train_view *view, const struct trainer_summary *s)
{
    struct console *console = view->cli->console;
    int64_t stop = view->config->train.stop_at;
    bool at_stop = stop > 0 && s->steps >= stop;
    struct text command;
    text_init(&command, view->cli->env);
    if (!at_stop)
        command_line_again(view->cli, &command);
    if (command.bytes == 0)
        text_printf(&command, "rerun the same command%s%s%s to resume",
                    view->fresh ? " without --fresh" : "", view->fresh && at_stop ? " and" : "",
                    at_stop ? " with a larger train.stop_at, or none," : "");
    console_fact(console, "next", text_string(&command));
    text_free(&command);
}

/* What to do with a finished model. */
static void print_sample(struct train_view *view, const struct trainer_summary *s,
                         const char *folder)
{
    size_t bytes = strlen(folder); /* a checkpoint in the fallback folder is outside */
    const char *model = strncmp(s->checkpoint, folder, bytes) == 0 ? folder : s->checkpoint;
    struct text command;
    text_init(&command, view->cli->env);
    text_add(&command, "sifr sample");
    command_line_add_word(&command, model);
    if (view->has_no_tokenizer)
        text_add(&command, " --tokenizer=FILE (the one of the token files: the run had none)");
    console_fact(view->cli->console, "next", text_string(&command));
    text_free(&command);
}

/* What the noise scale says about the batch. */
static void describe_noise(const struct train_view *view, const struct trainer_summary *s,
                           char *out, size_t bytes)
{
    double scale = noise_scale_value(&s->noise);
    int64_t batch = view->config->train.global_batch;
    char count[32];
    if (!isfinite(scale))
        snprintf(out, bytes, "the gradient is lost in it: run more steps, or larger batches");
    else
        snprintf(out, bytes, "scale %s sequences; a batch of %lld is %s",
                 text_human_count(count, scale), (long long)batch,
                 (double)batch > scale ? "above it: a smaller one needs less data"
                                       : "below it: a larger one needs fewer steps");
}

static void print_text(struct train_view *view, const struct trainer_summary *s, const char *folder)
{
    struct console *console = view->cli->console;
    char line[512], a[32], b[32];
    draw_curve(view);
    console_line(console, "\n%s%s%s after %lld step%s, %s tokens, %s",
                 console_style(console, STYLE_BOLD), s->end, console_style(console, STYLE_PLAIN),
                 (long long)s->steps, s->steps == 1 ? "" : "s",
                 text_human_count(a, (double)s->tokens), text_human_seconds(b, s->seconds));
    snprintf(line, sizeof line, "%.4f", s->loss);
    console_fact(console, "loss", line);
    if (s->val.tokens) {
        int used = snprintf(line, sizeof line, "loss %.4f, perplexity %.2f", s->val.loss,
                            s->val.perplexity);
        if (isfinite(s->val.bits_per_byte))
            snprintf(line + used, sizeof line - (size_t)used, ", %.4f bits per byte",
                     s->val.bits_per_byte);
        console_fact(console, "held out", line);
    }
    if (s->noise.steps > 0) {
        describe_noise(view, s, line, sizeof line);
        console_fact(console, "noise", line);
    }
    snprintf(line, sizeof line, "%s tok/s (median)", text_human_count(a, s->tokens_per_second));
    console_fact(console, "speed", isfinite(s->tokens_per_second) ? line : "too few steps to tell");
    describe_held(s, line, sizeof line);
    console_fact(console, "memory", line);
    if (traffic_has_moved(&s->traffic)) {
        describe_moved(s, line, sizeof line);
        console_fact(console, "offload", line);
    }
    if (*gauges_words(&s->gauges, line, sizeof line))
        console_fact(console, "GPU", line);
    if (s->skipped) {
        snprintf(line, sizeof line, "%lld step%s", (long long)s->skipped,
                 s->skipped == 1 ? "" : "s");
        console_fact(console, "skipped", line);
    }
    if (s->ranks > 1)
        ranks_table_print(console, view->config, s);
    console_fact(console, "folder", folder);
    if (!*s->checkpoint)
        return;
    console_fact(console, "model", s->checkpoint);
    if (strcmp(s->end, "stopped") == 0)
        print_resume(view, s);
    else
        print_sample(view, s, folder);
}

void train_end_show(struct train_view *view, const struct trainer_summary *summary,
                    const char *folder)
{
    console_live_clear(view->cli->console);
    if (view->json)
        print_json(view, summary, folder);
    if (!train_view_for_people(view) || summary->steps == summary->first_step)
        return;
    train_view_keep_line(view);
    if (strcmp(summary->end, "done") == 0 || strcmp(summary->end, "stopped") == 0)
        print_text(view, summary, folder);
}
