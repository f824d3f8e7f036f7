/* metrics -- numbers are printed so that they parse to the same bits: two runs can be compared line
 * by line. The buffer for the longest line is allocated at creation.
 */
#include "train/run/metrics.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "train/run/line_file.h"
#include "train/run/tfevents.h"

enum { LINE_BYTES = 4096, TAG_BYTES = 48 };

/* Kinds of records. Each has its own file, and one may fail while others succeed. */
enum part { PART_STEPS, PART_SAMPLES, PART_EVENTS, PART_COUNT };

static const struct {
    const char *loud, *calm, *file;
} parts[PART_COUNT] = {
    [PART_STEPS] = {"METRICS", "metrics", "metrics.jsonl"},
    [PART_SAMPLES] = {"TEXT SAMPLES", "text samples", "samples.jsonl"},
    [PART_EVENTS] = {"TENSORBOARD EVENTS", "TensorBoard events", "the events file"},
};

struct metrics {
    struct env *env; /* borrowed */
    struct line_file *steps, *samples;
    struct tfevents *events;
    struct text line;
    int64_t lost[PART_COUNT]; /* consecutive records that could not be written */
    /* Of steps with routing: tags of the figures, of the model and then of each layer, and room for
     * them and the second loss. */
    char (*tags)[TAG_BYTES];
    struct tfevents_scalar *scalars;
};

/* --- creation ------------------------------------------------------------------------------- */

/* Every step has a record, written before the step's checkpoint. So the records of a run that
 * resumes after `step` reach at least to `step`, unless some were lost. */
static void tell_missing(struct env *env, const char *path, int64_t last, int64_t step)
{
    char first[32] = "";
    bool one = last + 1 == step;
    if (last >= step)
        return;
    if (!one)
        snprintf(first, sizeof first, "s %" PRId64 " to", last + 1);
    log_warn(env,
             "metrics.jsonl has no record of step%s %" PRId64
             ": '%s' was truncated, damaged or removed, or its disk was full; the run continues "
             "without writing %s again",
             first, step, path, one ? "it" : "them");
}

static enum status open_lines(struct env *env, const char *folder, enum part part, int64_t step,
                              int64_t sampled, struct line_file **file)
{
    char *path;
    int64_t last = 0;
    TRY(path_join(env, folder, parts[part].file, &path));
    /* Which steps had a sample is not certain, but a run creates the file when it begins. */
    if (part == PART_SAMPLES && sampled > 0 && !file_exists(path))
        log_warn(env,
                 "there is no '%s': if the run made text samples up to step %" PRId64
                 ", they are lost; the run continues and does not write them again",
                 path, sampled);
    enum status st =
        step > 0 ? line_file_cut(env, path, step, &last) : line_file_set_aside(env, path);
    if (st == STATUS_OK)
        st = line_file_open(env, path, file);
    if (st == STATUS_OK && part == PART_STEPS)
        tell_missing(env, path, last, step);
    mem_free(env, path);
    return st;
}

/* Grow the buffer now: later nothing may be allocated. */
static enum status reserve(struct text *text, size_t bytes)
{
    static const char blank[64] = {0};
    while (text->status == STATUS_OK && text->bytes < bytes)
        text_add_bytes(text, blank, sizeof blank);
    text_clear(text);
    return text->status;
}

static enum status make_tags(struct metrics *metrics, const struct routing_report *routing)
{
    int64_t layers = routing_layers(routing);
    size_t count = (size_t)(layers + 1) * ROUTING_FIGURES;
    TRY(mem_alloc_array(metrics->env, MEM_OTHER, "metrics", count, sizeof *metrics->tags,
                        &metrics->tags));
    TRY(mem_alloc_array(metrics->env, MEM_OTHER, "metrics", count + 2, sizeof *metrics->scalars,
                        &metrics->scalars));
    char(*tag)[TAG_BYTES] = metrics->tags;
    for (int f = 0; f < ROUTING_FIGURES; f++)
        snprintf(*tag++, TAG_BYTES, "sars/%s", routing_word((enum routing_figure)f));
    for (int64_t layer = 0; layer < layers; layer++)
        for (int f = 0; f < ROUTING_FIGURES; f++)
            snprintf(*tag++, TAG_BYTES, "sars/%s/layer_%" PRId64,
                     routing_word((enum routing_figure)f), layer);
    return STATUS_OK;
}

static enum status open_all(struct metrics *metrics, const char *folder, int64_t step,
                            int64_t sampled, const char *config_yaml, size_t sample_bytes,
                            const struct routing_report *routing)
{
    /* JSON may turn one byte of a sample into six: \u001b. */
    size_t line_bytes = LINE_BYTES + 6 * sample_bytes;
    TRY(reserve(&metrics->line, line_bytes + (routing ? routing_print_bytes(routing) : 0)));
    if (routing)
        TRY(make_tags(metrics, routing));
    TRY(open_lines(metrics->env, folder, PART_STEPS, step, sampled, &metrics->steps));
    TRY(open_lines(metrics->env, folder, PART_SAMPLES, step, sampled, &metrics->samples));
    TRY(tfevents_create(metrics->env, folder, &metrics->events));
    enum status st = tfevents_text(metrics->events, clock_wall(), 0, "config/text_summary",
                                   config_yaml, strlen(config_yaml));
    return st == STATUS_IO ? FAIL(metrics->env, IO, "cannot write TensorBoard events to '%s': %s",
                                  folder, strerror(errno))
                           : st;
}

enum status metrics_create(struct env *env, const char *folder, int64_t step, int64_t sampled,
                           const char *config_yaml, size_t sample_bytes,
                           const struct routing_report *routing, struct metrics **metrics)
{
    struct metrics *m;
    TRY(mem_alloc(env, MEM_OTHER, "metrics", sizeof *m, &m));
    m->env = env;
    text_init(&m->line, env);
    enum status st = open_all(m, folder, step, sampled, config_yaml, sample_bytes, routing);
    if (st == STATUS_OK)
        *metrics = m;
    else
        metrics_destroy(m);
    return st;
}

void metrics_destroy(struct metrics *metrics)
{
    if (metrics == NULL)
        return;
    tfevents_destroy(metrics->events);
    line_file_close(metrics->samples);
    line_file_close(metrics->steps);
    mem_free(metrics->env, metrics->scalars);
    mem_free(metrics->env, metrics->tags);
    text_free(&metrics->line);
    mem_free(metrics->env, metrics);
}

/* --- a full disk ---------------------------------------------------------------------------- */

/* Handle the status of writing a record of `step`. An I/O error is a warning, since later records
 * may succeed; other errors end the run. */
static enum status settle(struct metrics *metrics, enum part part, int64_t step, enum status st)
{
    int64_t *lost = &metrics->lost[part];
    if (st == STATUS_IO) {
        if ((*lost)++ == 0)
            log_warn(metrics->env,
                     "THE %s OF STEP %lld ARE NOT WRITTEN: %s; the run continues and will try to "
                     "write later ones",
                     parts[part].loud, (long long)step, strerror(errno));
        return STATUS_OK;
    }
    if (st == STATUS_OK && *lost > 0) {
        log_warn(metrics->env,
                 "%s are written again from step %lld on; %lld record%s missing in %s",
                 parts[part].calm, (long long)step, (long long)*lost, *lost == 1 ? " is" : "s are",
                 parts[part].file);
        *lost = 0;
    }
    return st;
}

/* --- a step --------------------------------------------------------------------------------- */

static void add_real(struct text *line, const char *key, double value)
{
    text_printf(line, ",\"%s\":", key);
    text_json_real(line, value);
}

static void add_known(struct text *line, const char *key, double value)
{
    if (value > 0)
        add_real(line, key, value);
}

/* The account of the worst rank by category, on its device; host memory if there is a GPU; files
 * that stand for memory; and the maxima of rank 0's GPU and process. */
static void add_memory(struct text *line, const struct trainer_step *step)
{
    text_add(line, ",\"mem\":{");
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        text_printf(line, "%s\"%s\":%zu", c > 0 ? "," : "", mem_category_word((enum mem_category)c),
                    step->held->bytes[c]);
    text_add(line, "}");
    if (step->ranks > 1)
        text_printf(line, ",\"mem_rank\":%d", step->held->rank);
    if (step->held->host_bytes > 0)
        text_printf(line, ",\"host_bytes\":%zu", step->held->host_bytes);
    if (step->held->disk_bytes > 0)
        text_printf(line, ",\"disk_bytes\":%zu", step->held->disk_bytes);
    if (step->gpu_bytes > 0)
        text_printf(line, ",\"gpu_bytes\":%zu", step->gpu_bytes);
    if (step->resident_bytes > 0)
        text_printf(line, ",\"resident\":%zu", step->resident_bytes);
}

/* Bytes that rank 0 sent, and seconds; empty for one rank. */
static void add_traffic(struct text *line, const struct trainer_step *step)
{
    const struct traffic *t = &step->traffic;
    text_add(line, ",\"comm\":{");
    if (step->ranks > 1) {
        text_printf(line, "\"ranks\":%d", step->ranks);
        for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
            text_printf(line, ",\"%s\":%lld", traffic_word((enum traffic_purpose)purpose),
                        (long long)t->sent[purpose]);
        add_real(line, "in_flight", t->in_flight);
        add_real(line, "waited", t->waited);
        add_real(line, "stalled", t->stalled);
        add_real(line, "tensor_in_flight", t->tensor_in_flight);
        add_real(line, "tensor_waited", t->tensor_waited);
    }
    text_add(line, "}");
}

/* Bytes of offloaded state that rank 0 moved. */
static void add_moved(struct text *line, const struct traffic *traffic)
{
    const char *before = ",\"offload\":{";
    if (!traffic_has_moved(traffic))
        return;
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++) {
        text_printf(line, "%s\"%s\":%lld", before, traffic_way_word((enum traffic_way)way),
                    (long long)traffic->moved[way]);
        before = ",";
    }
    text_add(line, "}");
}

static enum status write_line(struct metrics *metrics, struct line_file *file)
{
    struct text *line = &metrics->line;
    text_add(line, "}\n");
    TRY(line->status);
    return line_file_add(file, line->data, line->bytes);
}

/* The last key of a record: metrics_evaluation may add it later, and fallback_id ignores it. */
static const char val_key[] = ",\"val\":";

static void add_evaluation(struct text *line, const struct evaluation *val)
{
    text_add(line, val_key);
    evaluation_print(val, line);
}

static enum status write_step(struct metrics *metrics, const struct trainer_step *step,
                              const struct evaluation *val)
{
    struct text *line = &metrics->line;
    text_clear(line);
    /* line_file_is_ours recognizes the file of a run by the keys up to mfu: never change them or
     * their order. */
    text_printf(line, "{\"step\":%lld,\"tokens\":%lld", (long long)step->step,
                (long long)step->tokens);
    add_real(line, "loss", step->loss);
    add_real(line, "grad_norm", step->grad_norm);
    add_real(line, "lr", step->lr);
    add_real(line, "seconds", step->seconds);
    add_real(line, "tokens_per_second", step->tokens_per_second);
    add_real(line, "mfu", step->mfu);
    add_known(line, "clock_mhz", step->gauges.clock_mhz);
    add_known(line, "power_w", step->gauges.watts);
    add_known(line, "temperature_c", step->gauges.celsius);
    text_printf(line, ",\"skipped\":%s", step->skipped ? "true" : "false");
    if (step->batch > 0)
        text_printf(line, ",\"batch\":%lld", (long long)step->batch);
    if (!isnan(step->loss_scale))
        add_real(line, "loss_scale", step->loss_scale);
    if (step->noise.steps > 0) {
        if (isfinite(noise_scale_value(&step->noise)))
            add_real(line, "noise_scale", noise_scale_value(&step->noise));
        add_real(line, "noise_square", step->noise.square);
        add_real(line, "noise_trace", step->noise.trace);
    }
    add_memory(line, step);
    add_traffic(line, step);
    add_moved(line, &step->traffic);
    if (step->routing != NULL) {
        text_add(line, ",\"sars\":");
        routing_print(step->routing, step->meta_norm, line);
    }
    if (val != NULL)
        add_evaluation(line, val);
    return write_line(metrics, metrics->steps);
}

/* Figures that are not finite are left out. */
static enum status write_routing(struct metrics *metrics, const struct trainer_step *step,
                                 double now)
{
    const struct routing_report *routing = step->routing;
    struct tfevents_scalar *to = metrics->scalars;
    const char(*tag)[TAG_BYTES] = (const char(*)[TAG_BYTES])metrics->tags;
    *to++ = (struct tfevents_scalar){"sars/meta_loss", (float)routing_meta_loss(routing)};
    if (isfinite(step->meta_norm))
        *to++ = (struct tfevents_scalar){"sars/meta_norm", (float)step->meta_norm};
    for (int64_t layer = ROUTING_MEAN; layer < routing_layers(routing); layer++)
        for (int f = 0; f < ROUTING_FIGURES; f++, tag++) {
            double value = routing_figure(routing, layer, (enum routing_figure)f);
            if (isfinite(value))
                *to++ = (struct tfevents_scalar){*tag, (float)value};
        }
    return tfevents_scalars(metrics->events, now, step->step, metrics->scalars,
                            (int)(to - metrics->scalars));
}

static enum status write_evaluation(struct metrics *metrics, int64_t step,
                                    const struct evaluation *val, double now)
{
    const struct tfevents_scalar held_out[] = {
        {"val/loss", (float)val->loss},
        {"val/bits_per_byte", (float)val->bits_per_byte},
    };
    return tfevents_scalars(metrics->events, now, step, held_out,
                            isnan(val->bits_per_byte) ? 1 : 2);
}

static enum status write_events(struct metrics *metrics, const struct trainer_step *step,
                                const struct evaluation *val)
{
    const double gib = 1024.0 * 1024 * 1024;
    double now = clock_wall();
    enum { ALWAYS = 5, SOMETIMES = 7 };
    struct tfevents_scalar train[ALWAYS + SOMETIMES] = {
        {"train/loss", (float)step->loss},
        {"train/grad_norm", (float)step->grad_norm},
        {"train/lr", (float)step->lr},
        {"perf/tokens_per_s", (float)step->tokens_per_second},
        {"memory/max_GiB", (float)((double)step->held->total_bytes / gib)},
    };
    const struct tfevents_scalar may_be_known[SOMETIMES] = {
        {"perf/mfu", isnan(step->mfu) ? 0 : (float)step->mfu},
        {"GPU/clock_MHz", (float)step->gauges.clock_mhz},
        {"GPU/power_W", (float)step->gauges.watts},
        {"train/batch", (float)step->batch},
        {"noise/scale", (float)noise_scale_value(&step->noise)},
        {"noise/square", (float)step->noise.square},
        {"noise/trace", (float)step->noise.trace},
    };
    int known = ALWAYS;
    for (int i = 0; i < SOMETIMES; i++)
        if (may_be_known[i].value > 0)
            train[known++] = may_be_known[i];
    TRY(tfevents_scalars(metrics->events, now, step->step, train, known));
    if (step->routing != NULL)
        TRY(write_routing(metrics, step, now));
    return val ? write_evaluation(metrics, step->step, val, now) : STATUS_OK;
}

enum status metrics_step(struct metrics *metrics, const struct trainer_step *step,
                         const struct evaluation *val)
{
    TRY(settle(metrics, PART_STEPS, step->step, write_step(metrics, step, val)));
    return settle(metrics, PART_EVENTS, step->step, write_events(metrics, step, val));
}

enum status metrics_evaluation(struct metrics *metrics, int64_t step, const struct evaluation *val)
{
    struct text *line = &metrics->line;
    text_clear(line);
    add_evaluation(line, val);
    TRY(line->status);
    TRY(line_file_extend(metrics->steps, step, val_key, line));
    return settle(metrics, PART_EVENTS, step, write_evaluation(metrics, step, val, clock_wall()));
}

/* --- a sample ------------------------------------------------------------------------------- */

enum status metrics_sample(struct metrics *metrics, const struct trainer_sample *sample)
{
    struct text *line = &metrics->line;
    text_clear(line);
    text_printf(line, "{\"step\":%lld,\"prompt\":", (long long)sample->step);
    text_json_string(line, sample->prompt, strlen(sample->prompt));
    text_add(line, ",\"text\":");
    text_json_string(line, sample->text, sample->text_bytes);
    TRY(settle(metrics, PART_SAMPLES, sample->step, write_line(metrics, metrics->samples)));
    enum status st = tfevents_text(metrics->events, clock_wall(), sample->step,
                                   "samples/text_summary", sample->text, sample->text_bytes);
    return settle(metrics, PART_EVENTS, sample->step, st);
}
