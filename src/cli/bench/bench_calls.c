#include "cli/bench/bench.h"
#include <string.h>
#include "base/clock.h"
#include "ops/ops_trial.h"
#include "plan/machine.h"
#include "plan/plan_time.h"

/* --- which calls ---------------------------------------------------------------------------- */

/* So small that the time is that of the call itself. */
#define TINY 64
static const struct ops_case tiny_calls[] = {
    {.op = "linear", .rows = 4, .linear = {TINY, TINY, .out_in = false}},
    {.op = "linear_dw", .rows = 4, .linear = {TINY, TINY, .out_in = false}},
    {.op = "attention", .attention = OPS_HEADS(1, 4, 1, 1, TINY)},
    {.op = "attention_backward", .attention = OPS_HEADS(1, 4, 1, 1, TINY)},
    {.op = "add", .count = TINY},
    {.op = "gelu", .count = TINY},
};
enum { TINY_CALLS = sizeof tiny_calls / sizeof tiny_calls[0] };

/* The calls of a typical step, at the sizes of `sifr bench ops`; a GPU needs 16 times as much to be
 * busy. */
static enum status usual_calls(struct env *env, bool gpu, struct ops_case **cases, int *count)
{
    TRY(mem_alloc_array(env, MEM_OTHER, "calls", (size_t)ops_bench_case_count, sizeof **cases,
                        cases));
    *count = ops_bench_case_count;
    for (int i = 0; i < *count; i++) {
        struct ops_case *c = &(*cases)[i];
        *c = ops_bench_cases[i].shape;
        if (!gpu || strcmp(c->op, "attention_cached") == 0)
            continue;
        c->rows *= 16;
        c->count *= 16;
        c->attention.batch *= 16;
        c->embedding.batch *= 16;
    }
    return STATUS_OK;
}

/* --- timing --------------------------------------------------------------------------------- */

enum status bench_median(struct session *session, double *value)
{
    struct env *env = device_env(session->device);
    double *all;
    if (!session->comm)
        return STATUS_OK;
    TRY(mem_alloc_array(env, MEM_OTHER, "said", (size_t)comm_size(session->comm), sizeof *all,
                        &all));
    enum status st = comm_exchange(session->comm, value, sizeof *value, all);
    if (st == STATUS_OK)
        *value = machine_fit_median(all, comm_size(session->comm));
    mem_free(env, all);
    return st;
}

static enum status time_call(struct session *session, const struct ops_case *c, double seconds,
                             struct bench_calls_line *line)
{
    struct ops_bench_result timed;
    if (session->comm)
        TRY(comm_barrier(session->comm));
    TRY(ops_bench_run(session->ops, c, OPS_BENCH_LOCATIONS, seconds, &timed));
    *line = (struct bench_calls_line){
        .measured = {.shape = *c, .type = session->ops->type, .seconds = timed.seconds},
        .flops = 1e9 * timed.gflops * timed.seconds,
        .bytes = 1e9 * timed.gbytes_per_second * timed.seconds};
    return bench_median(session, &line->measured.seconds);
}

enum { COPIES = 9 };

static enum status time_copy(struct session *session, double *rate)
{
    struct device *device = session->device;
    size_t bytes = (size_t)(device_memory(device) == MEM_GPU ? 256 : 32) << 20;
    double samples[COPIES];
    char *room;
    TRY(device_alloc(device, MEM_OTHER, "bench copy", 2 * bytes, &room));
    device_zero(session->stream, room, 2 * bytes); /* untouched pages are not backed by memory */
    enum status st = session->comm ? comm_barrier(session->comm) : STATUS_OK;
    for (int i = 0; i < COPIES && st == STATUS_OK; i++) {
        double start = clock_seconds();
        device_accumulate(session->stream, room, DTYPE_F32, room + bytes, DTYPE_F32,
                          (int64_t)(bytes / sizeof(float)));
        st = stream_sync(session->stream);
        samples[i] = clock_seconds() - start;
    }
    device_free(device, room);
    TRY(st);
    double seconds = machine_fit_median(samples, COPIES);
    TRY(bench_median(session, &seconds));
    *rate = 3 * (double)bytes / seconds; /* two reads and a write */
    return STATUS_OK;
}

static enum status time_all(struct session *session, const struct bench_calls *config,
                            const struct ops_case *cases, int count,
                            struct bench_calls_result *result)
{
    struct env *env = device_env(session->device);
    struct progress_task task;
    char name[OPS_CASE_NAME];
    progress_begin(&task, "timing", "calls", (uint64_t)(count + TINY_CALLS));
    for (int i = 0; i < count + TINY_CALLS; i++) {
        const struct ops_case *c = i < count ? &cases[i] : &tiny_calls[i - count];
        snprintf(task.figure, sizeof task.figure, "%.*s", (int)sizeof task.figure - 1,
                 ops_case_name(c, name));
        progress_reach(env, &task, (uint64_t)i);
        TRY(time_call(session, c, config->seconds, &result->lines[result->count]));
        result->count++;
    }
    TRY(time_copy(session, &result->copy_bytes_per_second));
    progress_end(env, &task);
    return bench_offload_run(session, config->folder, config->seconds, &result->offload);
}

/* --- fitting -------------------------------------------------------------------------------- */

static enum status fit(struct env *env, struct bench_calls_result *result)
{
    struct fit_call *calls;
    TRY(mem_alloc_array(env, MEM_OTHER, "calls of a kind", (size_t)result->count, sizeof *calls,
                        &calls));
    for (int k = 0; k < OPS_KIND_COUNT; k++) {
        int count = 0;
        for (int i = 0; i < result->count; i++) {
            const struct bench_calls_line *line = &result->lines[i];
            /* An embedding reads only some rows of its table, so its bytes are not comparable. */
            bool lookup = strcmp(line->measured.shape.op, "embedding") == 0;
            if (ops_kind_of(line->measured.shape.op) == (enum ops_kind)k && !lookup)
                calls[count++] =
                    (struct fit_call){line->flops, line->bytes, line->measured.seconds};
        }
        result->rates[k] = machine_fit_rate(calls, count);
        result->errors[k] = machine_fit_rate_error(result->rates[k], calls, count);
    }
    mem_free(env, calls);
    return STATUS_OK;
}

enum status bench_calls_run(struct session *session, const struct bench_calls *config,
                            struct bench_calls_result *result)
{
    enum status st;
    struct env *env = device_env(session->device);
    struct ops_case *cases;
    int count;
    *result = (struct bench_calls_result){0};
    TRY(config->request
            ? plan_time_calls(env, config->request, &cases, &count)
            : usual_calls(env, device_memory(session->device) == MEM_GPU, &cases, &count));
    TRY_OR(undo_cases, mem_alloc_array(env, MEM_OTHER, "timed calls", (size_t)count + TINY_CALLS,
                                       sizeof *result->lines, &result->lines));
    st = time_all(session, config, cases, count, result);
    if (st == STATUS_OK)
        st = fit(env, result);
    if (st != STATUS_OK)
        bench_calls_free(env, result);
undo_cases:
    mem_free(env, cases);
    return st;
}

void bench_calls_free(struct env *env, struct bench_calls_result *result)
{
    mem_free(env, result->lines);
    *result = (struct bench_calls_result){0};
}

enum status bench_calls_profile(struct env *env, const struct bench_calls_result *result,
                                struct machine_profile *profile)
{
    struct ops_prices *ops = &profile->ops;
    TRY(mem_alloc_array(env, MEM_OTHER, "measured calls", (size_t)result->count,
                        sizeof *ops->measured, &ops->measured));
    for (int i = 0; i < result->count; i++)
        ops->measured[i] = result->lines[i].measured;
    ops->measured_count = result->count;
    ops_prices_sort(ops);
    memcpy(ops->rates, result->rates, sizeof ops->rates);
    profile->copy_bytes_per_second = result->copy_bytes_per_second;
    profile->offload = result->offload;
    profile->has_ops = true;
    return STATUS_OK;
}

/* --- output --------------------------------------------------------------------------------- */

void bench_calls_table(struct console *console, const struct bench_calls_result *result)
{
    char name[OPS_CASE_NAME];
    console_line(console, "%-56s %10s %10s %8s", "call", "us", "GFLOP/s", "GB/s");
    for (int i = 0; i < result->count; i++) {
        const struct bench_calls_line *line = &result->lines[i];
        double seconds = line->measured.seconds;
        console_line(console, "%-56s %10.1f %10.1f %8.1f",
                     ops_case_name(&line->measured.shape, name), 1e6 * seconds,
                     line->flops / seconds / 1e9, line->bytes / seconds / 1e9);
    }
    console_line(console, "\n%-20s %10s %10s %8s %10s", "fitted", "us/call", "GFLOP/s", "GB/s",
                 "error");
    for (int k = 0; k < OPS_KIND_COUNT; k++) {
        const struct ops_rate *rate = &result->rates[k];
        console_line(console, "  %-18s %10.1f %10.1f %8.1f %9.2fx", ops_kind_word((enum ops_kind)k),
                     1e6 * rate->call, rate->flops_per_second / 1e9, rate->bytes_per_second / 1e9,
                     result->errors[k]);
    }
    const struct {
        const char *words;
        double rate;
    } rates[] = {{"copy", result->copy_bytes_per_second},
                 {"host and GPU", result->offload.link},
                 {"disk, reading", result->offload.disk_read},
                 {"disk, writing", result->offload.disk_write},
                 {"AdamW on the host", result->offload.host_update}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (rates[i].rate > 0)
            console_line(console, "  %-18s %30.1f", rates[i].words, rates[i].rate / 1e9);
}

void bench_calls_json(struct json_out *json, const struct bench_calls_result *result)
{
    char name[OPS_CASE_NAME];
    json_out_open(json, "calls", '[');
    for (int i = 0; i < result->count; i++) {
        const struct bench_calls_line *line = &result->lines[i];
        json_out_open(json, NULL, '{');
        json_out_string(json, "name", ops_case_name(&line->measured.shape, name));
        json_out_real(json, "seconds", line->measured.seconds);
        json_out_real(json, "flops", line->flops);
        json_out_real(json, "bytes", line->bytes);
        json_out_close(json, '}');
    }
    json_out_close(json, ']');
    json_out_open(json, "rates", '{');
    for (int k = 0; k < OPS_KIND_COUNT; k++) {
        json_out_open(json, ops_kind_word((enum ops_kind)k), '{');
        json_out_real(json, "call", result->rates[k].call);
        json_out_real(json, "flops_per_second", result->rates[k].flops_per_second);
        json_out_real(json, "bytes_per_second", result->rates[k].bytes_per_second);
        json_out_real(json, "error", result->errors[k]);
        json_out_close(json, '}');
    }
    json_out_close(json, '}');
    json_out_real(json, "copy_bytes_per_second", result->copy_bytes_per_second);
    json_out_open(json, "offload", '{');
    json_out_real(json, "link_bytes_per_second", result->offload.link);
    json_out_real(json, "disk_read_bytes_per_second", result->offload.disk_read);
    json_out_real(json, "disk_write_bytes_per_second", result->offload.disk_write);
    json_out_real(json, "host_update_bytes_per_second", result->offload.host_update);
    json_out_close(json, '}');
}
