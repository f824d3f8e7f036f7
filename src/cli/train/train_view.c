/* train_view -- the callback of a step allocates nothing: lines are formatted in place, and the
 * JSON record reuses its memory. */
#include "cli/train/train_view.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/host.h"
#include "base/placement.h"
#include "cli/rank_report.h"
#include "comm/launcher.h"
#include "train/run/pace.h"

enum { BAR_CELLS = 10 };

__attribute__((format(printf, 2, 3))) static void append(char *out, const char *format, ...)
{
    size_t used = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + used, STEP_LINE_BYTES - used, format, args);
    va_end(args);
}

/* " | active 31%, gated 64% | meta 5.21 (norm 0.11)" */
static void append_routing(char *out, const struct routing_report *routing, double meta_norm)
{
    double gated = routing_figure(routing, ROUTING_MEAN, ROUTING_GATED);
    append(out, " | active %.0f%%", 100 * routing_figure(routing, ROUTING_MEAN, ROUTING_ACTIVE));
    if (isfinite(gated))
        append(out, ", gated %.0f%%", 100 * gated);
    append(out, " | meta %.2f", routing_meta_loss(routing));
    if (isfinite(meta_norm))
        append(out, meta_norm < 1e4 ? " (norm %.2f)" : " (norm %.1e)", meta_norm);
}

char *step_line(char *out, const struct trainer_step *s)
{
    char human[32];
    double milliseconds = s->seconds * 1e3;
    struct device_gauges brief = s->gauges; /* clock and power, on which the rate depends */
    brief.celsius = 0;
    out[0] = 0;
    append(out, "step%6lld/%lld%6.1f%%", (long long)s->step, (long long)s->steps,
           100 * (double)s->step / (double)s->steps);
    append(out, " | loss %.4f | gnorm %.2f | lr %.2e", s->loss, s->grad_norm, s->lr);
    if (isfinite(noise_scale_value(&s->noise)))
        append(out, " | noise %s", text_human_count(human, noise_scale_value(&s->noise)));
    if (s->routing)
        append_routing(out, s->routing, s->meta_norm);
    append(out, milliseconds < 10 ? " | %.1f ms" : " | %.0f ms", milliseconds);
    append(out, " | %s tok/s", text_human_count(human, s->tokens_per_second));
    if (isfinite(s->mfu))
        append(out, " | mfu %.1f%%", 100 * s->mfu);
    if (*gauges_words(&brief, human, sizeof human))
        append(out, " | %s", human);
    append(out, " | mem %s", text_human_bytes(human, (double)s->held->total_bytes));
    if (isfinite(s->eta_seconds))
        append(out, " | eta %s", text_human_seconds(human, s->eta_seconds));
    if (s->skipped)
        append(out, " | skipped");
    return out;
}

void train_view_open(struct train_view *view, struct cli *cli, bool json, bool fresh,
                     int64_t log_every)
{
    *view = (struct train_view){.cli = cli,
                                .json = json,
                                .quiet = cli->console->quiet,
                                .fresh = fresh,
                                .log_every = log_every};
    json_out_begin(&view->record, cli->env);
}

void train_view_close(struct train_view *view)
{
    console_live_clear(view->cli->console);
    text_free(&view->record.text);
}

struct json_out *train_view_event(struct train_view *view, const char *event)
{
    json_out_restart(&view->record);
    json_out_string(&view->record, "event", event);
    return &view->record;
}

bool train_view_learning(void *user, int done, int total)
{
    const struct train_view *view = user;
    (void)done, (void)total; /* the tokenizer shows how far it is */
    return *view->cli->stop == 0;
}

/* --- before the first step ------------------------------------------------------------------ */

/* Print the lines of run_config_describe; each is a name and a value. */
static void describe_config(struct console *console, struct env *env,
                            const struct run_config *config)
{
    struct text text;
    text_init(&text, env);
    run_config_describe(config, &text);
    for (const char *s = text_string(&text); *s;) {
        char line[512], name[32];
        int bytes = (int)strcspn(s, "\n"), name_bytes = (int)strcspn(s, " \n");
        snprintf(name, sizeof name, "%.*s", name_bytes, s);
        name_bytes += (int)strspn(s + name_bytes, " ");
        snprintf(line, sizeof line, "%.*s", bytes > name_bytes ? bytes - name_bytes : 0,
                 s + name_bytes);
        console_fact(console, name, line);
        s += bytes + (s[bytes] == '\n');
    }
    text_free(&text);
}

void train_view_elsewhere(const struct footprint_worst *held, char *out, size_t bytes)
{
    const struct {
        const char *words;
        size_t bytes;
    } places[] = {{"on the host", held->host_bytes}, {"on disk", held->disk_bytes}};
    char human[32];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        size_t used = strlen(out);
        if (places[i].bytes > 0)
            snprintf(out + used, bytes - used, "; %s %s", places[i].words,
                     text_human_bytes(human, (double)places[i].bytes));
    }
}

/* The main entries of the memory account of the rank that holds the most, and what libraries hold
 * in addition. */
static void describe_memory(const struct footprint_worst *held, int ranks, char *out, size_t bytes)
{
    char human[32], who[48] = "";
    bool gpu = held->host_bytes > 0;
    size_t runtime = train_view_held(held)->runtime_bytes;
    if (ranks > 1)
        snprintf(who, sizeof who, " on rank %d, the most of %d", held->rank, ranks);
    size_t used = (size_t)snprintf(
        out, bytes, "%s%s:", text_human_bytes(human, (double)held->total_bytes), who);
    const char *comma = "";
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++) {
        if (held->bytes[c] * 200 < held->total_bytes || used >= bytes)
            continue;
        used += (size_t)snprintf(out + used, bytes - used, "%s %s %s", comma,
                                 mem_category_word((enum mem_category)c),
                                 text_human_bytes(human, (double)held->bytes[c]));
        comma = ",";
    }
    if (runtime > 0 && used < bytes)
        used += (size_t)snprintf(out + used, bytes - used, "; runtime %s%s", gpu ? "about " : "",
                                 text_human_bytes(human, (double)runtime));
    train_view_elsewhere(held, out, bytes);
}

static void describe_data(const struct trainer_facts *facts, char *out, size_t bytes)
{
    const struct data_config *data = &facts->config->data;
    char learnt[32], held[32], mapped[32];
    snprintf(out, bytes, "%s: %s tokens, %s held out, %s mapped; the run sees %.2f epochs",
             *data->path ? data->path : "data.mix",
             text_human_count(learnt, (double)facts->train_tokens),
             text_human_count(held, (double)facts->val_tokens),
             text_human_bytes(mapped, (double)facts->data_bytes), facts->epochs);
}

/* More threads than CPUs: whose, and what to change. */
static void describe_crowd(const struct cores *cores, const struct machine *machine,
                           long long threads, struct text *line)
{
    bool all = cores->cpus == machine->processors;
    const char *lower = threads > 1 ? "lower run.threads" : "";
    const char *openmp = placement_openmp();
    if (all && cores->ranks == 1)
        text_printf(line, "; %d threads", cores->threads);
    if (all) {
        text_printf(line, ", more than there are cores: %s", *lower ? lower : "they take turns");
        return;
    }
    if (cores->also >= 0)
        text_printf(line, "; ranks %d and %d share %d CPU%s for", cores->crowded, cores->also,
                    cores->cpus, cores->cpus == 1 ? "" : "s");
    else
        text_printf(line, "; rank %d has %d CPU%s for", cores->crowded, cores->cpus,
                    cores->cpus == 1 ? "" : "s");
    text_printf(line, " %d threads: %s%s", cores->threads, lower, *lower ? ", or " : "");
    text_printf(line, openmp ? "unset %s" : "let the launcher or taskset give more CPUs", openmp);
}

/* The processors that rank 0 may use, and whether the ranks have enough. */
static void describe_processors(const struct train_view *view, const struct trainer_facts *facts,
                                char *out, size_t bytes)
{
    struct machine machine;
    char why[48] = "";
    machine_look(&machine);
    const struct cores *cores = facts->cores;
    long long threads = (long long)facts->config->machine.threads;
    int sharers = cores->apart ? 1 : cores->ranks; /* ranks on these cores */
    struct text line;
    text_init(&line, view->cli->env);
    if (*view->threads_why)
        snprintf(why, sizeof why, " (%s)", view->threads_why);
    text_printf(&line, "%s of %d", machine.mask, machine.processors);
    if (machine.all_nodes > 1)
        text_printf(&line, ", NUMA node%s %s", machine.nodes == 1 ? "" : "s", machine.node_list);
    if (cores->ranks > 1)
        text_printf(&line, "; %d ranks x %lld thread%s%s here%s", cores->ranks, threads,
                    threads == 1 ? "" : "s", why, cores->apart ? ", each on cores of its own" : "");
    else if (*why && cores->crowded < 0)
        text_printf(&line, "; %lld thread%s%s", threads, threads == 1 ? "" : "s", why);
    if (cores->crowded >= 0)
        describe_crowd(cores, &machine, threads, &line);
    else if (threads * sharers > machine.cores && threads > 1 && strcmp(facts->device, "cpu") == 0)
        text_printf(&line, "; two threads on a core, as hyper-threads: compare run.threads=%lld",
                    threads / 2);
    snprintf(out, bytes, "%s", text_string(&line));
    text_free(&line);
}

static void print_header(struct train_view *view, const struct trainer_facts *facts)
{
    struct console *console = view->cli->console;
    const struct tokenizer *tokenizer = facts->config->tokenizer;
    char line[512], human[32];
    console_line(console, "%ssifr train%s into %s", console_style(console, STYLE_BOLD),
                 console_style(console, STYLE_PLAIN), facts->folder);
    describe_config(console, view->cli->env, facts->config);
    if (facts->ranks > 1) {
        ranks_describe(facts, line, sizeof line);
        console_fact(console, "ranks", line);
    }
    snprintf(line, sizeof line, "%s", text_human_count(human, (double)facts->parameters));
    console_fact(console, "params", line);
    describe_data(facts, line, sizeof line);
    console_fact(console, "data", line);
    if (tokenizer) {
        const char *name = *facts->config->data.tokenizer ? facts->config->data.tokenizer
                           : *facts->config->model.path   ? "the model's own"
                                                          : "bytes";
        snprintf(line, sizeof line, "%s: %d tokens", name, tokenizer_vocab(tokenizer));
        console_fact(console, "tokenizer", line);
    }
    describe_processors(view, facts, line, sizeof line);
    console_fact(console, "cores", line);
    describe_memory(facts->held, facts->ranks, line, sizeof line);
    console_fact(console, "memory", line);
}

static void on_ready(void *user, const struct trainer_facts *facts)
{
    struct train_view *view = user;
    view->config = facts->config;
    console_live_clear(view->cli->console);
    view->has_no_tokenizer = !facts->config->tokenizer;
    if (train_view_for_people(view))
        print_header(view, facts);
    if (!view->json)
        return;
    char line[512];
    struct json_out *json = train_view_event(view, "start");
    json_out_string(json, "folder", facts->folder);
    json_out_int(json, "parameters", facts->parameters);
    json_out_string(json, "optimizer", optimizer_word(run_optimizer(facts->config).kind));
    json_out_int(json, "train_tokens", facts->train_tokens);
    json_out_int(json, "val_tokens", facts->val_tokens);
    json_out_int(json, "data_bytes", (int64_t)facts->data_bytes);
    json_out_int(json, "step_tokens", facts->step_tokens);
    json_out_int(json, "first_step", facts->first_step);
    if (facts->first_step > 0) {
        json_out_real(json, "load_seconds", facts->load->seconds);
        json_out_int(json, "load_memory_bytes", (int64_t)facts->load->memory_bytes);
        json_out_int(json, "load_grown_bytes", (int64_t)facts->load->grown_bytes);
    }
    json_out_real(json, "flops_per_token", facts->flops_per_token);
    json_out_int(json, "ranks", facts->ranks);
    describe_processors(view, facts, line, sizeof line);
    json_out_string(json, "cores", line);
    json_out_string(json, "comm", facts->comm);
    json_out_int(json, "mem_bytes", (int64_t)facts->held->total_bytes);
    json_out_int(json, "mem_rank", facts->held->rank);
    if (facts->held->host_bytes > 0)
        json_out_int(json, "host_bytes", (int64_t)facts->held->host_bytes);
    if (facts->held->disk_bytes > 0)
        json_out_int(json, "disk_bytes", (int64_t)facts->held->disk_bytes);
    if (train_view_held(facts->held)->held_bytes > 0)
        json_out_int(json, "runtime_bytes", (int64_t)train_view_held(facts->held)->runtime_bytes);
    json_out_string(json, "device", facts->device);
    json_out_string(json, "gpu", facts->gpu);
    json_out_flush(json, view->cli->console);
}

/* --- steps ---------------------------------------------------------------------------------- */

static void add_routing_json(struct json_out *json, const struct routing_report *routing,
                             double meta_norm)
{
    json_out_open(json, "sars", '{');
    json_out_real(json, "meta_loss", routing_meta_loss(routing));
    json_out_real(json, "meta_norm", meta_norm);
    for (int f = 0; f < ROUTING_FIGURES; f++)
        json_out_real(json, routing_word((enum routing_figure)f),
                      routing_figure(routing, ROUTING_MEAN, (enum routing_figure)f));
    json_out_close(json, '}');
}

static void print_step_json(struct train_view *view, const struct trainer_step *step)
{
    struct json_out *json = train_view_event(view, "step");
    json_out_int(json, "step", step->step);
    json_out_int(json, "steps", step->steps);
    json_out_int(json, "tokens", step->tokens);
    if (step->batch > 0)
        json_out_int(json, "batch", step->batch);
    json_out_real(json, "loss", step->loss);
    json_out_real(json, "grad_norm", step->grad_norm);
    json_out_real(json, "lr", step->lr);
    json_out_real(json, "seconds", step->seconds);
    json_out_real(json, "tokens_per_second", step->tokens_per_second);
    json_out_real(json, "mfu", step->mfu);
    json_out_gauges(json, &step->gauges);
    json_out_real(json, "eta_seconds", step->eta_seconds);
    json_out_bool(json, "skipped", step->skipped);
    if (isfinite(step->loss_scale))
        json_out_real(json, "loss_scale", step->loss_scale);
    if (step->noise.steps > 0)
        json_out_real(json, "noise_scale", noise_scale_value(&step->noise));
    if (step->routing)
        add_routing_json(json, step->routing, step->meta_norm);
    json_out_int(json, "mem_bytes", (int64_t)step->held->total_bytes);
    json_out_flush(json, view->cli->console);
}

/* A bar and the whole step line if it fits the terminal, else a shorter line. */
static void show_live(struct train_view *view, const struct trainer_step *step)
{
    char line[STEP_LINE_BYTES + 3 * BAR_CELLS + 2], bar[3 * BAR_CELLS + 1], rate[32], eta[32];
    double now = clock_seconds(), share = (double)step->step / (double)step->steps;
    if (now - view->shown < 0.1 && step->step < step->steps)
        return;
    view->shown = now;
    console_bar(view->cli->console, bar, BAR_CELLS, share);
    if (BAR_CELLS + 2 + (int)strlen(view->line) <= view->cli->console->width)
        snprintf(line, sizeof line, "%s %s", bar, view->line);
    else
        snprintf(line, sizeof line, "%s %3.0f%% | %lld/%lld | loss %.4f | %s tok/s | eta %s", bar,
                 100 * share, (long long)step->step, (long long)step->steps, step->loss,
                 text_human_count(rate, step->tokens_per_second),
                 text_human_seconds(eta, step->eta_seconds));
    console_live(view->cli->console, stdout, line);
}

void train_view_keep_line(struct train_view *view)
{
    if (!view->line_kept && view->line_step > 0)
        console_line(view->cli->console, "%s", view->line);
    view->line_kept = true;
}

static void on_step(void *user, const struct trainer_step *step)
{
    struct train_view *view = user;
    bool due = step->step == 1 || step->step % view->log_every == 0 || step->step == step->steps ||
               step->skipped;
    view->stepped = true;
    curve_add(&view->losses, (double)step->step, step->loss);
    if (view->json) {
        print_step_json(view, step);
        return;
    }
    step_line(view->line, step);
    view->line_step = step->step;
    view->line_kept = false;
    if (view->quiet)
        return;
    if (!view->cli->console->out_terminal && due)
        train_view_keep_line(view);
    else
        show_live(view, step);
}

static void on_eval(void *user, int64_t step, const struct evaluation *e)
{
    struct train_view *view = user;
    struct console *console = view->cli->console;
    if (view->eval_count == VIEW_EVALS)
        memmove(view->evals, view->evals + 1, --view->eval_count * sizeof view->evals[0]);
    view->evals[view->eval_count++] = (struct plot_point){(double)step, e->loss};
    if (view->json) {
        struct json_out *json = train_view_event(view, "eval");
        json_out_int(json, "step", step);
        json_out_real(json, "loss", e->loss);
        json_out_real(json, "perplexity", e->perplexity);
        json_out_real(json, "bits_per_byte", e->bits_per_byte);
        json_out_int(json, "tokens", e->tokens);
        json_out_real(json, "seconds", e->seconds);
        json_out_flush(json, console);
    } else if (!view->quiet) {
        char bits[48] = "", human[32];
        if (isfinite(e->bits_per_byte))
            snprintf(bits, sizeof bits, " | %.4f bits/byte", e->bits_per_byte);
        train_view_keep_line(view);
        console_line(console, "%seval%6lld%s | val loss %.4f | perplexity %.2f%s | %s",
                     console_style(console, STYLE_YELLOW), (long long)step,
                     console_style(console, STYLE_PLAIN), e->loss, e->perplexity, bits,
                     text_human_seconds(human, e->seconds));
    }
}

static void on_sample(void *user, const struct trainer_sample *sample)
{
    struct train_view *view = user;
    struct console *console = view->cli->console;
    if (view->json) {
        struct json_out *json = train_view_event(view, "sample");
        json_out_int(json, "step", sample->step);
        json_out_string(json, "prompt", sample->prompt);
        json_out_bytes(json, "text", sample->text, sample->text_bytes);
        json_out_flush(json, console);
    } else if (!view->quiet) {
        char head[96];
        int bytes =
            snprintf(head, sizeof head, "%ssample%4lld%s | ", console_style(console, STYLE_CYAN),
                     (long long)sample->step, console_style(console, STYLE_PLAIN));
        train_view_keep_line(view);
        console_write(console, head, (size_t)bytes);
        console_text(console, sample->prompt, strlen(sample->prompt));
        console_text(console, sample->text, sample->text_bytes);
        console_line(console, "%s", "");
    }
}

static void on_saved(void *user, const struct checkpoint_result *result)
{
    struct train_view *view = user;
    struct console *console = view->cli->console;
    if (view->json) {
        struct json_out *json = train_view_event(view, "checkpoint");
        json_out_int(json, "step", result->step);
        json_out_string(json, "path", result->path);
        json_out_int(json, "bytes", (int64_t)result->bytes);
        json_out_real(json, "seconds", result->seconds);
        json_out_real(json, "written", result->written);
        json_out_real(json, "stood", result->stood);
        json_out_flush(json, console);
    } else if (!view->quiet) {
        char bytes[32], seconds[32], stood[32];
        train_view_keep_line(view);
        console_line(console, "%ssaved%5lld%s | %s | %s in %s, the run waited %s",
                     console_style(console, STYLE_CYAN), (long long)result->step,
                     console_style(console, STYLE_PLAIN), result->path,
                     text_human_bytes(bytes, (double)result->bytes),
                     text_human_seconds(seconds, result->seconds),
                     text_human_seconds(stood, result->stood));
    }
}

/* The receiver of a signal acknowledges it: the handler, or the supervisor, which passes it on as
 * SIGUSR1. The supervisor does not see a signal that was sent to one rank, and the handler does not
 * acknowledge signals of a launcher: those are acknowledged here. */
static bool is_acknowledged(int signal)
{
    struct launcher launcher;
    if (rank_report_wanted())
        return signal == SIGUSR1;
    return signal == SIGINT || !launcher_find(&launcher);
}

static bool on_should_stop(void *user)
{
    struct train_view *view = user;
    /* From here on a signal stops the run after the current step. An earlier signal is seen by the
     * check that follows. */
    if (!*view->cli->stepping) {
        *view->cli->stepping = view->config->checkpoint.final ? CLI_STEPPING : CLI_STEPPING_UNSAVED;
        rank_report_stepping(0);
    }
    int signal = *view->cli->stop;
    if (signal && !view->stop_said && view->stepped) {
        view->stop_said = true;
        if (!is_acknowledged(signal))
            log_info(view->cli->env, "%s", command_stop_train[*view->cli->stepping]);
    }
    return signal != 0;
}

static void on_all_saved(void *user)
{
    const struct train_view *view = user;
    if (view->cli->saved)
        *view->cli->saved = 1;
    rank_report_saved(0);
}

struct trainer_callbacks train_view_callbacks(struct train_view *view)
{
    return (struct trainer_callbacks){.user = view,
                                      .ready = on_ready,
                                      .step = on_step,
                                      .eval = on_eval,
                                      .sample = on_sample,
                                      .saved = on_saved,
                                      .should_stop = on_should_stop,
                                      .all_saved = on_all_saved};
}
