/* plan_batch -- prints steps and time to the same loss against the number of ranks, from the
 * gradient noise scale of a run: a row for each number of ranks, two pictures, and what follows
 * from them. */
#include <math.h>
#include <stdio.h>
#include "cli/json_out.h"
#include "cli/plan/plan_view.h"
#include "cli/plot.h"

/* Doubling the ranks pays little if it saves less than this share of the time. */
static const double little = 0.2;

/* --- figures ------------------------------------------------------------------------------ */

static double steps_of(const struct plan_batch_view *view, const struct scaling_point *point)
{
    return batch_law_steps(view->law, (double)point->batch);
}

static const struct scaling_row *first_that_fits(const struct scaling *scaling)
{
    const struct scaling_row *row = scaling->rows;
    while (row->best.batch == 0)
        row++;
    return row;
}

/* How much sooner than the first row; without times, if all steps take as long as its steps. */
static double speedup_of(const struct plan_batch_view *view, const struct scaling_row *row)
{
    const struct scaling_row *first = first_that_fits(view->scaling);
    if (view->search)
        return first->best.seconds / row->best.seconds;
    return steps_of(view, &first->best) / steps_of(view, &row->best);
}

static double efficiency_of(const struct plan_batch_view *view, const struct scaling_row *row)
{
    return speedup_of(view, row) * first_that_fits(view->scaling)->ranks / row->ranks;
}

/* The global batch of the run in noise scales. */
static double excess_of(const struct plan_batch_view *view)
{
    return (double)view->config->train.global_batch / view->noise->scale;
}

/* The first row whose batch is above the noise scale; NULL = none. */
static const struct scaling_row *first_above(const struct plan_batch_view *view)
{
    for (int i = 0; i < view->scaling->count; i++)
        if ((double)view->scaling->rows[i].best.batch > view->noise->scale)
            return &view->scaling->rows[i];
    return NULL;
}

/* --- around the table --------------------------------------------------------------------- */

static void describe(const struct plan_batch_view *view, struct text *text)
{
    const struct train_config *train = &view->config->train;
    char word[32];
    if (view->search)
        plan_search_describe(view->search, text);
    text_printf(text, "noise    scale %.4g sequences, ", view->noise->scale);
    if (view->noise->run[0] != '\0')
        text_printf(text, "measured by %s after step %lld\n", view->noise->run,
                    (long long)view->noise->step);
    else
        text_add(text, "as given\n");
    text_printf(text, "batch    %lld sequence%s: %.3g times the noise scale; %lld steps\n",
                (long long)train->global_batch, train->global_batch == 1 ? "" : "s",
                excess_of(view), (long long)train->steps);
    text_printf(
        text,
        "law      the same loss takes %.0f x (1 + %.4g / batch) steps and %s x (1 + batch / %.4g) "
        "sequences,\n"
        "         if the learning rate suits the batch\n",
        view->law->least_steps, view->noise->scale,
        text_human_count(word, view->law->least_steps * view->noise->scale), view->noise->scale);
    if (!view->search)
        text_printf(text,
                    "note     nothing is timed without a machine: each rank keeps its part of the "
                    "batch;\n"
                    "         for times and the best batch add --gpus=%d --machine=NAME|FILE\n",
                    view->ranks > 1 ? view->ranks : SCALING_RANKS);
}

static void warn(struct cli *cli, const struct plan_batch_view *view)
{
    double batch = (double)view->config->train.global_batch, scale = view->noise->scale;
    if (batch <= scale)
        return;
    log_warn(cli->env,
             "the global batch of %.0f is %.1f times the noise scale %.4g: it needs %.1f times the "
             "tokens of a small batch, and saves %.0f %% of the steps of a batch of %.4g; lower "
             "train.global_batch, unless time counts more than tokens",
             batch, excess_of(view), scale, batch_law_samples(view->law, batch),
             100 * (1 - batch_law_steps(view->law, batch) / batch_law_steps(view->law, scale)),
             scale);
}

/* What the rows say. */
static void conclude(const struct plan_batch_view *view, struct text *text)
{
    const struct scaling *scaling = view->scaling;
    const struct scaling_row *above = first_above(view);
    int enough = scaling_enough(scaling, view->law, little);
    const char *what = view->search ? "time" : "steps";
    text_add(text, "\n");
    if (enough > 0)
        text_printf(text,
                    "beyond %d rank%s, doubling the ranks saves less than %.0f %% of the %s\n",
                    enough, enough == 1 ? "" : "s", 100 * little, what);
    else if (first_that_fits(scaling) < &scaling->rows[scaling->count - 1])
        text_printf(text, "up to %d rank%s, doubling the ranks saves at least %.0f %% of the %s\n",
                    scaling->rows[scaling->count - 1].ranks,
                    scaling->rows[scaling->count - 1].ranks == 1 ? "" : "s", 100 * little, what);
    if (above)
        text_printf(text,
                    "from %d rank%s on the batch is above the noise scale: more than twice the "
                    "least tokens\n",
                    above->ranks, above->ranks == 1 ? "" : "s");
    if (view->search)
        text_add(text, "for the layout of a row: sifr plan with --gpus=RANKS "
                       "--train.global_batch=BATCH and without a noise scale\n");
}

/* --- the table ---------------------------------------------------------------------------- */

static void timed_row(const struct plan_batch_view *view, const struct scaling_row *row,
                      struct text *text)
{
    const struct search_layout *layout = &row->best.layout;
    const struct plan_request *request = &layout->request;
    char step[32], total[32], share[16];
    text_printf(text, "%7d", row->ranks);
    if (row->best.batch == 0) {
        text_add(text, "  no layout fits\n");
        return;
    }
    bool given = row->given.batch > 0;
    text_printf(text, " %10s %10s",
                given ? plan_search_seconds(step, row->given.layout.time.step) : "-",
                given ? plan_search_seconds(total, row->given.seconds) : "-");
    text_printf(text, "  %9lld %10.0f", (long long)row->best.batch, steps_of(view, &row->best));
    text_printf(text, " %10s %10s", plan_search_seconds(step, layout->time.step),
                plan_search_seconds(total, row->best.seconds));
    snprintf(share, sizeof share, "%.1f %%", 100 * efficiency_of(view, row));
    text_printf(text, " %8.1f x %10s %7.2f x", speedup_of(view, row), share,
                batch_law_samples(view->law, (double)row->best.batch));
    text_printf(text, "  tp %d pp %d dp %d stage %d micro-batch %lld\n", (int)request->parallel.tp,
                (int)request->parallel.pp, layout->dp, request->zero.stage,
                (long long)request->engine.micro_batch);
}

static void timed_table(const struct cli *cli, const struct plan_batch_view *view,
                        struct text *text)
{
    char batch[32];
    snprintf(batch, sizeof batch, "batch %lld", (long long)view->config->train.global_batch);
    text_printf(text, "%s%7s %21s  %9s\n", console_style(cli->console, STYLE_BOLD), "", batch,
                "best");
    text_printf(text, "%7s %10s %10s  %9s %10s %10s %10s %10s %10s %9s  %s%s\n", "ranks", "step",
                "time", "batch", "steps", "step", "time", "speed-up", "efficiency", "tokens",
                "layout", console_style(cli->console, STYLE_PLAIN));
    for (int i = 0; i < view->scaling->count; i++)
        timed_row(view, &view->scaling->rows[i], text);
}

static void plain_table(const struct cli *cli, const struct plan_batch_view *view,
                        struct text *text)
{
    text_printf(text, "%s%7s %11s %12s %18s %9s%s\n", console_style(cli->console, STYLE_BOLD),
                "ranks", "batch", "steps", "speed-up at most", "tokens",
                console_style(cli->console, STYLE_PLAIN));
    for (int i = 0; i < view->scaling->count; i++) {
        const struct scaling_row *row = &view->scaling->rows[i];
        text_printf(text, "%7d %11lld %12.0f %16.1f x %7.2f x%s\n", row->ranks,
                    (long long)row->best.batch, steps_of(view, &row->best), speedup_of(view, row),
                    batch_law_samples(view->law, (double)row->best.batch),
                    row->ranks == view->ranks ? "  the run" : "");
    }
}

/* --- pictures ----------------------------------------------------------------------------- */

/* The largest unit in which the first time has at least one digit before the point. */
static const struct time_unit {
    const char *name;
    double seconds;
} * unit_of(double seconds)
{
    static const struct time_unit units[] = {
        {"days", 86400}, {"hours", 3600}, {"minutes", 60}, {"seconds", 1}};
    const struct time_unit *unit = units;
    while (unit->seconds > 1 && seconds < 2 * unit->seconds)
        unit++;
    return unit;
}

enum picture { PICTURE_TIME, PICTURE_STEPS };

static void draw(const struct cli *cli, const struct plan_batch_view *view, enum picture picture,
                 struct text *text)
{
    const struct console *console = cli->console;
    const struct scaling *scaling = view->scaling;
    struct plot_point line[SCALING_ROWS], marks[SCALING_ROWS];
    const struct time_unit *unit = unit_of(first_that_fits(scaling)->best.seconds);
    int mark_count = 0;
    for (int i = 0; i < scaling->count; i++) {
        const struct scaling_row *row = &scaling->rows[i];
        bool fits = row->best.batch > 0;
        line[i] = (struct plot_point){row->ranks, NAN};
        if (fits)
            line[i].y = picture == PICTURE_TIME ? row->best.seconds / unit->seconds
                                                : steps_of(view, &row->best);
        if (picture == PICTURE_TIME && row->given.batch > 0)
            marks[mark_count++] =
                (struct plot_point){row->ranks, row->given.seconds / unit->seconds};
    }
    struct plot plot = plot_on(console, 72, 10);
    plot.line = line;
    plot.line_count = scaling->count;
    plot.marks = marks;
    plot.mark_count = mark_count;
    plot.log_x = plot.log_y = true;
    if (picture == PICTURE_TIME)
        text_printf(
            text, "\n%s to the same loss against ranks: line = best batch, %s = batch %lld\n",
            unit->name, console->ascii ? "o" : "●", (long long)view->config->train.global_batch);
    else
        text_add(text, "\nsteps to the same loss against ranks\n");
    plot_draw(&plot, text);
}

static enum status show_table(struct cli *cli, const struct plan_batch_view *view)
{
    struct text text;
    text_init(&text, cli->env);
    describe(view, &text);
    text_add(&text, "\n");
    if (view->search)
        timed_table(cli, view, &text);
    else
        plain_table(cli, view, &text);
    if (view->scaling->count > 1 && view->search)
        draw(cli, view, PICTURE_TIME, &text);
    if (view->scaling->count > 1)
        draw(cli, view, PICTURE_STEPS, &text);
    conclude(view, &text);
    return console_print(cli->console, &text);
}

/* --- JSON --------------------------------------------------------------------------------- */

static void json_point(struct json_out *json, const struct plan_batch_view *view, const char *key,
                       const struct scaling_point *point)
{
    const struct plan_request *request = &point->layout.request;
    if (point->batch == 0)
        return;
    json_out_open(json, key, '{');
    json_out_int(json, "global_batch", point->batch);
    json_out_real(json, "steps", steps_of(view, point));
    json_out_real(json, "samples", batch_law_samples(view->law, (double)point->batch));
    if (view->search) {
        json_out_real(json, "step_s", point->layout.time.step);
        json_out_real(json, "seconds", point->seconds);
        json_out_int(json, "tp", request->parallel.tp);
        json_out_int(json, "pp", request->parallel.pp);
        json_out_int(json, "dp", point->layout.dp);
        json_out_int(json, "stage", request->zero.stage);
        json_out_int(json, "micro_batch", request->engine.micro_batch);
        json_out_string(json, "recompute", recompute_word(request->engine.recompute));
    }
    json_out_close(json, '}');
}

static void json_row(struct json_out *json, const struct plan_batch_view *view,
                     const struct scaling_row *row)
{
    json_out_open(json, NULL, '{');
    json_out_int(json, "ranks", row->ranks);
    json_out_bool(json, "fits", row->best.batch > 0);
    json_point(json, view, "given", &row->given);
    json_point(json, view, "best", &row->best);
    if (row->best.batch > 0) {
        json_out_real(json, "speedup", speedup_of(view, row));
        json_out_real(json, "efficiency", efficiency_of(view, row));
    }
    json_out_close(json, '}');
}

static enum status show_json(struct cli *cli, const struct plan_batch_view *view)
{
    const struct train_config *train = &view->config->train;
    int enough = scaling_enough(view->scaling, view->law, little);
    const struct scaling_row *above = first_above(view);
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_real(&json, "noise_scale", view->noise->scale);
    if (view->noise->run[0] != '\0') {
        json_out_string(&json, "run", view->noise->run);
        json_out_int(&json, "run_step", view->noise->step);
    }
    json_out_int(&json, "global_batch", train->global_batch);
    json_out_int(&json, "steps", train->steps);
    json_out_real(&json, "least_steps", view->law->least_steps);
    json_out_real(&json, "least_sequences", view->law->least_steps * view->noise->scale);
    json_out_bool(&json, "above_noise_scale", (double)train->global_batch > view->noise->scale);
    json_out_bool(&json, "timed", view->search != NULL);
    if (view->search) {
        json_out_string(&json, "machine", view->search->space->machine->name);
        json_out_string(&json, "prices", view->search->space->request->ops);
        json_out_real(&json, "search_s", view->search->seconds);
    }
    json_out_int(&json, "ranks", view->ranks);
    json_out_open(&json, "rows", '[');
    for (int i = 0; i < view->scaling->count; i++)
        json_row(&json, view, &view->scaling->rows[i]);
    json_out_close(&json, ']');
    if (enough > 0)
        json_out_int(&json, "enough_ranks", enough);
    if (above)
        json_out_int(&json, "ranks_above_noise_scale", above->ranks);
    return json_out_print(&json, cli->console);
}

enum status plan_batch_show(struct cli *cli, const struct plan_batch_view *view, bool json)
{
    TRY(json ? show_json(cli, view) : show_table(cli, view));
    warn(cli, view);
    return STATUS_OK;
}
