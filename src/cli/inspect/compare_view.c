/* compare_view -- prints the comparison of runs: as tables and curves for people, or as one JSON
 * object. The first run is the one that the others are compared with. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "cli/inspect/compare.h"
#include "cli/json_out.h"
#include "cli/plot.h"
#include "train/checkpoint/config_lines.h"

enum { VALUE_BYTES = 28, LABEL_BYTES = 48 };

static const enum console_style styles[COMPARE_RUNS] = {STYLE_CYAN,  STYLE_YELLOW, STYLE_MAGENTA,
                                                        STYLE_GREEN, STYLE_RED,    STYLE_BLUE,
                                                        STYLE_BOLD,  STYLE_DIM};

static char letter(int run)
{
    return (char)('a' + run);
}

static const char *colour(struct cli *cli, int run)
{
    return console_style(cli->console, styles[run]);
}

static const char *plain(struct cli *cli)
{
    return console_style(cli->console, STYLE_PLAIN);
}

/* The first bytes of a text that may be long; returns out. */
static char *shorten(const char *value, size_t bytes, char out[VALUE_BYTES])
{
    if (bytes >= 2 && value[0] == '"' && value[bytes - 1] == '"') { /* YAML's quotes */
        value++;
        bytes -= 2;
    }
    if (bytes < VALUE_BYTES)
        snprintf(out, VALUE_BYTES, "%.*s", (int)bytes, value);
    else
        snprintf(out, VALUE_BYTES, "..%.*s", VALUE_BYTES - 3, value + bytes - (VALUE_BYTES - 3));
    return out;
}

/* --- the runs ------------------------------------------------------------------------------- */

static void say_skipped(const struct compare_run *run, struct text *text)
{
    if (run->skipped > 0)
        text_printf(text, "   %" PRId64 " line%s of metrics.jsonl skipped: no record of a step\n",
                    run->skipped, run->skipped == 1 ? "" : "s");
}

static const char *short_loss(char out[32], double loss)
{
    snprintf(out, 32, fabs(loss) < 1e6 ? "%.4f" : "%.4g", loss);
    return out;
}

static void describe_run(struct cli *cli, const struct compare_run *run, int r, struct text *text)
{
    char loss[32];
    int64_t last = run->count > 0 ? run->steps[run->count - 1].step : 0;
    text_printf(text, "%s%c  %s%s: %s, ", colour(cli, r), letter(r), run->path, plain(cli),
                run->end);
    if (run->count == 0) {
        text_add(text, "no step is recorded\n");
        say_skipped(run, text);
        return;
    }
    if (run->steps[0].step > 1)
        text_printf(text, "steps %" PRId64 " to %" PRId64, run->steps[0].step, last);
    else
        text_printf(text, "%" PRId64 " step%s", last, last == 1 ? "" : "s");
    if (run->planned > last)
        text_printf(text, " of %" PRId64, run->planned);
    text_printf(text, " on %d rank%s; loss %s", run->ranks, run->ranks == 1 ? "" : "s",
                short_loss(loss, run->steps[run->count - 1].loss));
    if (!isnan(run->val))
        text_printf(text, ", held out %s (step %" PRId64 ")", short_loss(loss, run->val),
                    run->val_step);
    if (!isnan(run->val) && run->val_best < run->val)
        text_printf(text, ", lowest %s (step %" PRId64 ")", short_loss(loss, run->val_best),
                    run->val_best_step);
    if (isnan(run->val))
        text_add(text, ", no evaluation");
    text_add(text, "\n");
    say_skipped(run, text);
}

/* --- the curves ----------------------------------------------------------------------------- */

static enum status draw_curves(struct cli *cli, const struct compare_run *runs, int count,
                               struct text *text)
{
    struct drawing {
        struct curve curves[COMPARE_RUNS];
        struct plot_point points[COMPARE_RUNS][CURVE_POINTS];
    } * d;
    struct plot_line lines[COMPARE_RUNS];
    struct plot plot = plot_on(cli->console, 96, 16);
    TRY(mem_alloc(cli->env, MEM_OTHER, "curves", sizeof *d, &d));
    for (int r = 0; r < count; r++) {
        for (int64_t i = 0; i < runs[r].count; i++)
            curve_add(&d->curves[r], (double)runs[r].steps[i].step, runs[r].steps[i].loss);
        lines[r] = (struct plot_line){.points = d->points[r],
                                      .count = curve_points(&d->curves[r], d->points[r]),
                                      .on = colour(cli, r),
                                      .letter = letter(r)};
    }
    plot.line = lines[0].points;
    plot.line_count = lines[0].count;
    plot.line_on = lines[0].on;
    plot.letter = lines[0].letter;
    plot.others = lines + 1;
    plot.other_count = count - 1;
    text_add(text, "\n");
    plot_draw(&plot, text);
    mem_free(cli->env, d);
    return STATUS_OK;
}

/* --- configurations ------------------------------------------------------------------------- */

/* The fields of a line of compare_config. */
struct fields {
    const char *text[COMPARE_RUNS + 1];
    int bytes[COMPARE_RUNS + 1];
};

/* Returns the next line, or NULL at the end. */
static const char *next_fields(const char *line, int count, struct fields *fields)
{
    if (!*line)
        return NULL;
    for (int i = 0; i <= count; i++) {
        fields->text[i] = line;
        fields->bytes[i] = (int)strcspn(line, "\t\n");
        line += fields->bytes[i] + (line[fields->bytes[i]] != '\0');
    }
    return line;
}

static bool changes_bits(const struct fields *fields)
{
    char line[160];
    snprintf(line, sizeof line, "%.*s: ", fields->bytes[0], fields->text[0]);
    enum config_weight weight = config_weight_of(line);
    return weight != CONFIG_FREE && weight != CONFIG_EVAL;
}

static void print_config(struct cli *cli, const struct compare_run *runs, int count,
                         const char *differences, struct text *text)
{
    struct fields fields;
    char value[VALUE_BYTES];
    int known = 0;
    for (int r = 0; r < count; r++)
        known += runs[r].config.bytes > 0;
    if (known < count)
        text_printf(text, "\nconfiguration: %d of %d runs have no config.yaml\n", count - known,
                    count);
    else if (!*differences)
        text_add(text, "\nconfiguration: no difference\n");
    if (!*differences)
        return;
    text_printf(text, "\n%-24s", "configuration");
    for (int r = 0; r < count; r++)
        text_printf(text, "%s %*c%s", colour(cli, r), VALUE_BYTES - 12, letter(r), plain(cli));
    text_add(text, "\n");
    for (const char *line = differences; (line = next_fields(line, count, &fields)) != NULL;) {
        text_printf(text, "  %-22.*s", fields.bytes[0], fields.text[0]);
        for (int r = 0; r < count; r++)
            text_printf(text, " %*s", VALUE_BYTES - 12,
                        shorten(fields.text[r + 1], (size_t)fields.bytes[r + 1], value));
        text_add(text, changes_bits(&fields) ? "  may change losses\n" : "  same losses\n");
    }
}

static bool any_changes_bits(const char *differences, int count)
{
    struct fields fields;
    bool any = false;
    for (const char *line = differences; (line = next_fields(line, count, &fields)) != NULL;)
        any = any || changes_bits(&fields);
    return any;
}

/* --- losses --------------------------------------------------------------------------------- */

static void print_losses(struct cli *cli, const struct compare_run *runs, int count,
                         const char *differences, struct text *text)
{
    bool unexplained = false;
    text_printf(text, "\nlosses, against %s%c%s\n", colour(cli, 0), letter(0), plain(cli));
    for (int r = 1; r < count; r++) {
        struct compare_losses l;
        compare_losses(&runs[0], &runs[r], &l);
        text_printf(text, "  %s%c%s  ", colour(cli, r), letter(r), plain(cli));
        if (l.common == 0) {
            text_add(text, "no step in common\n");
            continue;
        }
        if (l.differing == 0) {
            text_printf(
                text, "equal in every bit: %" PRId64 " common step%s, %" PRId64 " to %" PRId64 "\n",
                l.common, l.common == 1 ? "" : "s", l.first_common, l.last_common);
            continue;
        }
        unexplained = unexplained || !any_changes_bits(differences, count);
        text_printf(text, "first differ at step %" PRId64 ": %.17g and %.17g", l.first, l.a, l.b);
        if (isfinite(l.a) && isfinite(l.b))
            text_printf(text, ", %.3g apart (%" PRIu64 " ulp)", fabs(l.a - l.b), l.ulps);
        text_printf(text, "\n     %" PRId64 " of %" PRId64 " common steps differ", l.differing,
                    l.common);
        if (l.largest > 0)
            text_printf(text, ", by %.3g at most (step %" PRId64 ")", l.largest, l.largest_step);
        text_add(text, "\n");
    }
    if (unexplained)
        text_add(text, "     no setting above explains that: compare the data files, the builds of "
                       "sifr, the machines and, where gradients are summed by worker, the number "
                       "of ranks\n");
}

/* Held-out losses are means over the data of one evaluation, which may differ between runs. */
static void print_evaluations(const struct compare_run *runs, int count, struct text *text)
{
    int64_t first = 0;
    bool differ = false;
    const char *separator = " ";
    for (int r = 0; r < count; r++) {
        if (runs[r].val_tokens <= 0)
            continue;
        differ = differ || (first > 0 && runs[r].val_tokens != first);
        first = runs[r].val_tokens;
    }
    if (!differ)
        return;
    text_add(text, "  held-out losses are of different amounts of data:");
    for (int r = 0; r < count; r++) {
        if (runs[r].val_tokens <= 0)
            continue;
        text_printf(text, "%s%c %" PRId64, separator, letter(r), runs[r].val_tokens);
        separator = ", ";
    }
    text_add(text,
             " tokens; to compare them, run with train.eval_batches=0 (all held-out data), or "
             "with the same train.eval_batches times train.micro_batch\n");
}

/* --- times ---------------------------------------------------------------------------------- */

/* "12.3 ms": short steps need the digits. */
static const char *short_time(char out[32], double seconds)
{
    if (!isfinite(seconds))
        return "-";
    if (fabs(seconds) >= 100)
        return text_human_seconds(out, seconds);
    snprintf(out, 32, fabs(seconds) < 1 ? "%.3g ms" : "%.3g s",
             fabs(seconds) < 1 ? 1e3 * seconds : seconds);
    return out;
}

static const char *percent(char out[32], double share)
{
    if (!isfinite(share))
        return "-";
    snprintf(out, 32, "%.1f%%", 100 * share);
    return out;
}

static void print_time_row(struct cli *cli, const struct compare_run *run, int r,
                           const struct compare_time *t, const struct compare_time *first,
                           struct text *text)
{
    char a[32], b[32], c[32], d[32], e[32], f[32], ratio[32] = "";
    if (r > 0 && first->seconds > 0 && isfinite(t->seconds))
        snprintf(ratio, sizeof ratio, "%.2f x", t->seconds / first->seconds);
    text_printf(text, "  %s%c%s %12s %9s %10s %8s %9s %9s %9s", colour(cli, r), letter(r),
                plain(cli), short_time(a, t->seconds), ratio,
                isfinite(t->tokens_per_second) ? text_human_count(b, t->tokens_per_second) : "-",
                percent(c, t->mfu), short_time(d, t->waited), percent(e, t->hidden),
                short_time(f, t->rest));
    if (isfinite(run->clock_mhz))
        text_printf(text, "  %.0f MHz", run->clock_mhz);
    if (isfinite(run->watts))
        text_printf(text, ", %.0f W", run->watts);
    if (isfinite(run->celsius))
        text_printf(text, ", %.0f C", run->celsius);
    text_add(text, "\n");
}

/* Where a slower run spends its additional time. */
static const struct cause {
    size_t offset;
    const char *key, *words;
} causes[] = {
    {offsetof(struct compare_time, rest), "rest", "compute and everything that is not waiting"},
    {offsetof(struct compare_time, other), "communication",
     "waiting for parameters, gradients and other messages"},
    {offsetof(struct compare_time, tensor), "tensor", "waiting within TP groups"},
    {offsetof(struct compare_time, stalled), "stalled", "waiting for a pipeline neighbour"},
};
enum { CAUSES = sizeof causes / sizeof *causes };

static double cause_of(const struct compare_time *t, const struct cause *cause)
{
    double value;
    memcpy(&value, (const char *)t + cause->offset, sizeof value);
    return isfinite(value) ? value : 0;
}

/* What the time of `b` has more than that of `a` for a cause. The parts are medians of their own;
 * what they leave of the whole is compute's. */
static double growth(const struct compare_time *a, const struct compare_time *b, int cause)
{
    double rest = b->seconds - a->seconds;
    if (cause > 0)
        return cause_of(b, &causes[cause]) - cause_of(a, &causes[cause]);
    for (int i = 1; i < CAUSES; i++)
        rest -= growth(a, b, i);
    return rest;
}

static double step_tokens(const struct compare_time *t)
{
    return t->seconds * t->tokens_per_second;
}

/* Runs whose steps have different numbers of tokens are compared by their tokens per second. */
static bool equal_steps(const struct compare_time *a, const struct compare_time *b)
{
    double first = step_tokens(a), second = step_tokens(b);
    return !isfinite(first) || !isfinite(second) || fabs(first - second) <= 0.05 * first;
}

static double cost_of(const struct compare_time *t)
{
    return isfinite(t->tokens_per_second) && t->tokens_per_second > 0 ? 1 / t->tokens_per_second
                                                                      : t->seconds;
}

static bool is_slower(const struct compare_time *t, const struct compare_time *fast)
{
    return cost_of(t) > 1.01 * cost_of(fast);
}

static void explain_slower(const struct compare_time *times, int fast, int slow, struct text *text)
{
    const struct compare_time *a = &times[fast], *b = &times[slow];
    double more = b->seconds - a->seconds;
    char all[32], part[32];
    if (!equal_steps(a, b)) {
        text_printf(
            text,
            "  %c is slower than %c: %.0f%% fewer tokens per second. Their steps have about "
            "%s and %s tokens\n",
            letter(slow), letter(fast), 100 - 100 * b->tokens_per_second / a->tokens_per_second,
            text_human_count(all, step_tokens(b)), text_human_count(part, step_tokens(a)));
        return;
    }
    text_printf(text, "  %c is slower than %c by %s a step (%.0f%%):", letter(slow), letter(fast),
                short_time(all, more), 100 * more / a->seconds);
    const char *separator = " ";
    for (int i = 0; i < CAUSES; i++) {
        double grown = growth(a, b, i);
        if (fabs(grown) < 0.02 * more)
            continue;
        text_printf(text, "%s%s%s %s", separator, grown < 0 ? "-" : "+",
                    short_time(part, fabs(grown)), causes[i].words);
        separator = ", ";
    }
    text_add(text, "\n");
}

/* The fastest and the slowest run with known times, the same if there is no difference above
 * 1 %. */
static void find_extremes(const struct compare_time *times, int count, int *fast, int *slow)
{
    *fast = *slow = -1;
    for (int r = 0; r < count; r++) {
        if (!isfinite(times[r].seconds))
            continue;
        if (*fast < 0 || cost_of(&times[r]) < cost_of(&times[*fast]))
            *fast = r;
        if (*slow < 0 || cost_of(&times[r]) > cost_of(&times[*slow]))
            *slow = r;
    }
    if (*fast >= 0 && !is_slower(&times[*slow], &times[*fast]))
        *slow = *fast;
}

static enum status find_times(const struct compare_run *runs, int count, bool *common,
                              struct compare_time times[COMPARE_RUNS])
{
    for (int r = 0; r < count; r++)
        TRY(compare_time(runs, count, r, common, &times[r]));
    return STATUS_OK;
}

static enum status print_times(struct cli *cli, const struct compare_run *runs, int count,
                               struct text *text)
{
    struct compare_time times[COMPARE_RUNS];
    bool common = false;
    int fast, slow;
    TRY(find_times(runs, count, &common, times));
    text_printf(text, "\ntime of a step: medians of %s\n",
                common ? "the steps that all runs have, without the first"
                       : "each run's own steps: fewer than 3 are common");
    text_printf(text, "    %12s %9s %10s %8s %9s %9s %9s\n", "seconds", "", "tokens/s", "MFU",
                "waited", "hidden", "rest");
    for (int r = 0; r < count; r++)
        print_time_row(cli, &runs[r], r, &times[r], &times[0], text);
    find_extremes(times, count, &fast, &slow);
    for (int r = 0; r < count && slow != fast; r++) {
        if (isfinite(times[r].seconds) && is_slower(&times[r], &times[fast]))
            explain_slower(times, fast, r, text);
    }
    if (slow == fast && fast >= 0)
        text_add(text, "  no run is slower than another by more than 1%\n");
    return STATUS_OK;
}

/* --- memory --------------------------------------------------------------------------------- */

static void print_bytes_row(const struct compare_run *runs, int count, const char *name,
                            size_t (*figure)(const struct compare_run *, int), int index,
                            struct text *text)
{
    char word[32];
    bool any = false;
    for (int r = 0; r < count; r++)
        any = any || figure(&runs[r], index) > 0;
    if (!any)
        return;
    text_printf(text, "  %-14s", name);
    for (int r = 0; r < count; r++)
        text_printf(text, " %11s", text_human_bytes(word, (double)figure(&runs[r], index)));
    text_add(text, "\n");
}

static size_t category_bytes(const struct compare_run *run, int category)
{
    return run->mem[category];
}

enum { HELD, GPU, HOST, DISK, PLACES };
static const char *const places[PLACES] = {"held", "on the GPU", "on the host", "on disk"};

static size_t place_bytes(const struct compare_run *run, int place)
{
    const size_t bytes[PLACES] = {run->held, run->gpu, run->host, run->disk};
    return bytes[place];
}

static void print_memory(struct cli *cli, const struct compare_run *runs, int count,
                         struct text *text)
{
    text_printf(text, "\n%-16s", "memory of a rank");
    for (int r = 0; r < count; r++)
        text_printf(text, "%s %11c%s", colour(cli, r), letter(r), plain(cli));
    text_add(text, "\n");
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        print_bytes_row(runs, count, mem_category_word((enum mem_category)c), category_bytes, c,
                        text);
    for (int p = 0; p < PLACES; p++)
        print_bytes_row(runs, count, places[p], place_bytes, p, text);
}

enum status compare_view_text(struct cli *cli, const struct compare_run *runs, int count)
{
    struct text text, differences;
    text_init(&text, cli->env);
    text_init(&differences, cli->env);
    for (int r = 0; r < count; r++)
        describe_run(cli, &runs[r], r, &text);
    enum status st = draw_curves(cli, runs, count, &text);
    if (st == STATUS_OK)
        st = compare_config(runs, count, &differences);
    if (st == STATUS_OK) {
        print_config(cli, runs, count, text_string(&differences), &text);
        print_losses(cli, runs, count, text_string(&differences), &text);
        print_evaluations(runs, count, &text);
        st = print_times(cli, runs, count, &text);
    }
    if (st == STATUS_OK)
        print_memory(cli, runs, count, &text);
    text_free(&differences);
    if (st == STATUS_OK)
        return console_print(cli->console, &text);
    text_free(&text);
    return st;
}

/* --- JSON ----------------------------------------------------------------------------------- */

static void json_run(struct json_out *json, const struct compare_run *run,
                     const struct compare_time *time)
{
    json_out_open(json, NULL, '{');
    json_out_string(json, "path", run->path);
    json_out_string(json, "end", run->end);
    json_out_int(json, "records", run->count);
    json_out_int(json, "ranks", run->ranks);
    if (run->count > 0) {
        json_out_int(json, "first_step", run->steps[0].step);
        json_out_int(json, "last_step", run->steps[run->count - 1].step);
        json_out_real(json, "loss", run->steps[run->count - 1].loss);
    }
    json_out_real(json, "val_loss", run->val);
    json_out_real(json, "lowest_val_loss", run->val_best);
    json_out_int(json, "val_tokens", run->val_tokens);
    json_out_int(json, "skipped_lines", run->skipped);
    json_out_int(json, "steps_timed", time->count);
    json_out_real(json, "seconds", time->seconds);
    json_out_real(json, "tokens_per_second", time->tokens_per_second);
    json_out_real(json, "mfu", time->mfu);
    json_out_real(json, "waited", time->waited);
    json_out_real(json, "hidden", time->hidden);
    for (int i = 0; i < CAUSES; i++)
        json_out_real(json, causes[i].key, cause_of(time, &causes[i]));
    json_out_mem(json, "mem", run->mem);
    json_out_int(json, "mem_bytes", (int64_t)run->held);
    json_out_int(json, "gpu_bytes", (int64_t)run->gpu);
    json_out_int(json, "host_bytes", (int64_t)run->host);
    json_out_int(json, "disk_bytes", (int64_t)run->disk);
    json_out_close(json, '}');
}

static void json_config(struct json_out *json, int count, const char *differences)
{
    struct fields fields;
    json_out_open(json, "config", '[');
    for (const char *line = differences; (line = next_fields(line, count, &fields)) != NULL;) {
        json_out_open(json, NULL, '{');
        json_out_bytes(json, "key", fields.text[0], (size_t)fields.bytes[0]);
        json_out_open(json, "values", '[');
        for (int r = 1; r <= count; r++)
            json_out_bytes(json, NULL, fields.text[r], (size_t)fields.bytes[r]);
        json_out_close(json, ']');
        json_out_bool(json, "may_change_losses", changes_bits(&fields));
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
}

static void json_losses(struct json_out *json, const struct compare_run *runs, int count)
{
    json_out_open(json, "losses", '[');
    for (int r = 1; r < count; r++) {
        struct compare_losses l;
        compare_losses(&runs[0], &runs[r], &l);
        json_out_open(json, NULL, '{');
        json_out_int(json, "run", r);
        json_out_int(json, "common", l.common);
        json_out_int(json, "differing", l.differing);
        json_out_bool(json, "equal", l.common > 0 && l.differing == 0);
        if (l.differing > 0) {
            json_out_int(json, "first_step", l.first);
            json_out_real(json, "first_a", l.a);
            json_out_real(json, "first_b", l.b);
            json_out_real(json, "first_difference", fabs(l.a - l.b));
            if (isfinite(l.a) && isfinite(l.b))
                json_out_int(json, "first_ulps", l.ulps > INT64_MAX ? INT64_MAX : (int64_t)l.ulps);
            json_out_real(json, "largest_difference", l.largest);
            json_out_int(json, "largest_step", l.largest_step);
        }
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
}

enum status compare_view_json(struct cli *cli, const struct compare_run *runs, int count)
{
    struct compare_time times[COMPARE_RUNS];
    struct text differences;
    struct json_out json;
    bool common = false;
    int fast, slow;
    TRY(find_times(runs, count, &common, times));
    text_init(&differences, cli->env);
    enum status st = compare_config(runs, count, &differences);
    json_out_begin(&json, cli->env);
    json_out_open(&json, "runs", '[');
    for (int r = 0; r < count; r++)
        json_run(&json, &runs[r], &times[r]);
    json_out_close(&json, ']');
    json_config(&json, count, text_string(&differences));
    json_losses(&json, runs, count);
    find_extremes(times, count, &fast, &slow);
    json_out_bool(&json, "common_steps", common);
    json_out_int(&json, "fastest", fast);
    json_out_int(&json, "slowest", slow);
    text_free(&differences);
    if (st == STATUS_OK)
        return json_out_print(&json, cli->console);
    text_free(&json.text);
    return st;
}
