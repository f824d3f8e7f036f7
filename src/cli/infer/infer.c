#include "cli/infer/infer.h"
#include "base/host.h"

enum status infer_find_ranks(struct cli *cli, int64_t n, const struct layout_config *layout,
                             int64_t threads, struct ranks_job *job)
{
    const struct ranks_config *ranks = &layout->ranks;
    job->backend = comm_backend_words[ranks->backend];
    job->timeout = ranks->timeout;
    job->delay = ranks->delay;
    TRY(ranks_find(cli->env, n, job->backend, &job->plan));
    job->threads = threads > 0 ? (int)threads : job->plan.share.count;
    return STATUS_OK;
}

size_t infer_memory(const struct ranks_plan *plan)
{
    struct machine machine;
    if (plan->way != RANKS_JOIN)
        return machine_memory();
    machine_look(&machine);
    return machine.memory_bytes;
}

void infer_describe_memory(const struct footprint_worst *held, int ranks, char *out, size_t bytes)
{
    char total[32], params[32], far[32], where[48] = "";
    if (ranks > 1)
        snprintf(where, sizeof where, " on the largest of %d ranks", ranks);
    int used = snprintf(out, bytes, "%s%s, %s of it parameters",
                        text_human_bytes(total, (double)held->total_bytes), where,
                        text_human_bytes(params, (double)held->bytes[MEM_PARAMS]));
    const struct {
        size_t bytes;
        const char *where;
    } others[] = {{held->host_bytes, "in host memory"}, {held->disk_bytes, "on disk"}};
    for (int i = 0; i < 2; i++)
        if (others[i].bytes > 0)
            used += snprintf(out + used, bytes - (size_t)used, "; %s %s",
                             text_human_bytes(far, (double)others[i].bytes), others[i].where);
}

void infer_json_memory(struct json_out *json, const struct footprint_worst *held, int ranks)
{
    json_out_int(json, "ranks", ranks);
    json_out_int(json, "rank_bytes", (int64_t)held->total_bytes);
    json_out_int(json, "host_bytes", (int64_t)held->host_bytes);
    json_out_int(json, "disk_bytes", (int64_t)held->disk_bytes);
    json_out_mem(json, "mem", held->bytes);
}
