/* summary -- writes summary.json: how a run ended, in one object. Written once, atomically, at the
 * end of every run that started. */
#include <string.h>
#include "base/file.h"
#include "train/run/run_events.h"

void evaluation_print(const struct evaluation *evaluation, struct text *text)
{
    text_add(text, "{\"loss\":");
    text_json_real(text, evaluation->loss);
    text_add(text, ",\"perplexity\":");
    text_json_real(text, evaluation->perplexity);
    text_add(text, ",\"bits_per_byte\":");
    text_json_real(text, evaluation->bits_per_byte);
    text_printf(text, ",\"tokens\":%lld,\"seconds\":", (long long)evaluation->tokens);
    text_json_real(text, evaluation->seconds);
    text_add(text, "}");
}

static void add_real(struct text *text, const char *key, double value)
{
    text_printf(text, ",\n  \"%s\": ", key);
    text_json_real(text, value);
}

static void add_string(struct text *text, const char *key, const char *value)
{
    text_printf(text, ",\n  \"%s\": ", key);
    text_json_string(text, value, strlen(value));
}

static void add_int(struct text *text, const char *key, int64_t value)
{
    text_printf(text, ",\n  \"%s\": %lld", key, (long long)value);
}

/* The memory of the worst rank. */
static void add_memory(struct text *text, const struct footprint_worst *held)
{
    const struct footprint *process = &held->process;
    text_printf(text, ",\n  \"peak_mem\": {\"total\": %zu", held->total_bytes);
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        text_printf(text, ", \"%s\": %zu", mem_category_word((enum mem_category)c), held->bytes[c]);
    text_printf(text, ", \"rank\": %d}", held->rank);
    if (held->host_bytes > 0)
        text_printf(text, ",\n  \"peak_host_mem\": %zu", held->host_bytes);
    if (held->disk_bytes > 0)
        text_printf(text, ",\n  \"disk_bytes\": %zu", held->disk_bytes);
    if (process->held_bytes > 0)
        text_printf(text,
                    ",\n  \"process\": {\"resident\": %zu, \"accounted\": %zu, \"runtime\": %zu}",
                    process->held_bytes, process->accounted_bytes, process->runtime_bytes);
}

static void add_known(struct text *text, const char *key, double value)
{
    if (value > 0)
        add_real(text, key, value);
}

/* Bytes in use on the fullest GPU, and the difference to the account, which `plan` estimates. */
static void add_gpu(struct text *text, const struct trainer_summary *summary)
{
    const struct footprint *gpu = &summary->held.gpu;
    const struct device_gauges *gauges = &summary->gauges;
    size_t rest =
        gpu->held_bytes > gpu->accounted_bytes ? gpu->held_bytes - gpu->accounted_bytes : 0;
    if (gpu->held_bytes > 0)
        text_printf(text,
                    ",\n  \"gpu\": {\"in_use\": %zu, \"accounted\": %zu, \"runtime\": %zu, "
                    "\"runtime_estimate\": %zu}",
                    gpu->held_bytes, gpu->accounted_bytes, rest, gpu->runtime_bytes);
    add_known(text, "clock_mhz", gauges->clock_mhz);
    add_known(text, "power_w", gauges->watts);
    add_known(text, "temperature_c", gauges->celsius);
}

static void add_purposes(struct text *text, const char *key,
                         const int64_t values[TRAFFIC_PURPOSE_COUNT])
{
    text_printf(text, ",\n  \"%s\": {", key);
    for (int purpose = 0; purpose < TRAFFIC_PURPOSE_COUNT; purpose++)
        text_printf(text, "%s\"%s\": %lld", purpose > 0 ? ", " : "",
                    traffic_word((enum traffic_purpose)purpose), (long long)values[purpose]);
    text_add(text, "}");
}

/* Bytes of offloaded state that rank 0 moved in all steps. */
static void add_moved(struct text *text, const struct traffic *traffic)
{
    const char *before = ",\n  \"offload\": {";
    if (!traffic_has_moved(traffic))
        return;
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++) {
        text_printf(text, "%s\"%s\": %lld", before, traffic_way_word((enum traffic_way)way),
                    (long long)traffic->moved[way]);
        before = ", ";
    }
    text_add(text, "}");
}

static void add_ranks(struct text *text, const struct trainer_summary *summary)
{
    const struct traffic *t = &summary->traffic;
    add_int(text, "ranks", summary->ranks);
    add_int(text, "state_bytes", (int64_t)summary->state_bytes);
    add_int(text, "whole_state_bytes", (int64_t)summary->whole_bytes);
    add_int(text, "state_rank", summary->state_rank);
    add_purposes(text, "sent", t->sent);
    add_purposes(text, "calls", t->calls);
    add_real(text, "comm_seconds", t->in_flight);
    add_real(text, "comm_waited", t->waited);
    add_real(text, "comm_stalled", t->stalled);
    add_real(text, "tensor_seconds", t->tensor_in_flight);
    add_real(text, "tensor_waited", t->tensor_waited);
}

static void print_summary(const struct trainer_summary *summary, struct text *text)
{
    text_add(text, "{\n  \"end\": ");
    text_json_string(text, summary->end, strlen(summary->end));
    if (*summary->error)
        add_string(text, "error", summary->error);
    add_int(text, "steps", summary->steps);
    add_int(text, "planned_steps", summary->planned_steps);
    if (summary->first_step > 0)
        add_int(text, "first_step", summary->first_step);
    add_int(text, "skipped", summary->skipped);
    add_int(text, "tokens", summary->tokens);
    add_int(text, "parameters", summary->parameters);
    add_real(text, "loss", summary->loss);
    if (summary->noise.steps > 0) {
        add_real(text, "noise_scale", noise_scale_value(&summary->noise));
        add_real(text, "noise_square", summary->noise.square);
        add_real(text, "noise_trace", summary->noise.trace);
    }
    text_add(text, ",\n  \"val\": ");
    if (summary->val.tokens > 0)
        evaluation_print(&summary->val, text);
    else
        text_add(text, "null");
    add_real(text, "seconds", summary->seconds);
    add_real(text, "tokens_per_second", summary->tokens_per_second);
    add_memory(text, &summary->held);
    add_gpu(text, summary);
    add_moved(text, &summary->traffic);
    if (summary->ranks > 1)
        add_ranks(text, summary);
    if (*summary->checkpoint)
        add_string(text, "checkpoint", summary->checkpoint);
    text_add(text, "\n}\n");
}

enum status trainer_summary_write(struct env *env, const char *folder,
                                  const struct trainer_summary *summary)
{
    struct text text;
    char *path;
    text_init(&text, env);
    print_summary(summary, &text);
    enum status st = path_join(env, folder, "summary.json", &path);
    if (st == STATUS_OK) {
        st = file_write_text(env, path, &text);
        mem_free(env, path);
    }
    text_free(&text);
    return st;
}
