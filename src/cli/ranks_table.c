/* ranks_table -- see the header.
 *
 * Per step, with R rounds of micro-batches (one where every worker has one, or adds up its own), b
 * bytes an element on the wire and c of a sum, and Psi parameters in N/G copies over G ranks each
 * (stage 0: G = 1):
 *
 *                     parameters                gradients            sums between copies
 *     stage 0         -                         (N-1)/N Psi b R      (N-1)/N Psi c
 *     stages 1, 2     (G-1)/G Psi b             (N-1)/N Psi b R      (N/G-1)/N Psi c
 *     stage 3         (G-1)/G Psi b 2R          (N-1)/N Psi b R      (N/G-1)/N Psi c
 *     with servers    - (they send)             Psi b R              -
 */
#include "cli/ranks_table.h"
#include <math.h>
#include <stdio.h>

struct ranks_volume ranks_formula(const struct run_config *config,
                                  const struct trainer_summary *summary)
{
    const struct ranks_config *ranks = &config->ranks;
    double n = summary->ranks, psi = (double)summary->parameters;
    double wire = (double)dtype_bytes(run_type(config));
    double rounds = ceil((double)run_micro_batches(config) / (n - (double)ranks->servers));
    double sent = ranks->accumulate == RUN_ACCUMULATE_LOCAL ? 1 : rounds;
    if (ranks->servers > 0)
        return (struct ranks_volume){.reduce = psi * wire * sent};
    double group = ranks->stage == 0 ? 1 : ranks->shard_group == 0 ? n : (double)ranks->shard_group;
    double params = (group - 1) / group * psi * wire * (ranks->stage == 3 ? 2 * rounds : 1);
    double sums = (n / group - 1) / n * psi * (double)dtype_bytes(run_sum_type(config));
    return (struct ranks_volume){.gather = params + sums,
                                 .reduce = (n - 1) / n * psi * wire * sent};
}

double ranks_hidden(const struct zero_traffic *traffic)
{
    if (!(traffic->in_flight > 0))
        return NAN;
    return traffic->waited < traffic->in_flight ? 1 - traffic->waited / traffic->in_flight : 0;
}

void ranks_describe(const struct trainer_facts *facts, char *out, size_t bytes)
{
    const struct ranks_config *ranks = &facts->config->ranks;
    int used = snprintf(out, bytes, "%d (%s), stage %d", facts->ranks, facts->comm, ranks->stage);
    if (ranks->stage == 3)
        used += snprintf(out + used, bytes - (size_t)used, ", prefetch %lld",
                         (long long)ranks->prefetch);
    if (ranks->shard_group > 0)
        used += snprintf(out + used, bytes - (size_t)used, ", a copy on every %lld",
                         (long long)ranks->shard_group);
    if (ranks->servers > 0)
        snprintf(out + used, bytes - (size_t)used, ", of them %lld server%s",
                 (long long)ranks->servers, ranks->servers == 1 ? "" : "s");
}

static void print_row(struct console *console, const char *name, double bytes, double other,
                      const char *note)
{
    char own[32], theirs[32] = "-", ratio[32] = "-";
    if (other > 0) {
        text_human_bytes(theirs, other);
        snprintf(ratio, sizeof ratio, "%.3f", bytes / other);
    }
    console_line(console, "  %s%-16s%s %12s %12s %8s  %s", console_style(console, STYLE_DIM), name,
                 console_style(console, STYLE_PLAIN), text_human_bytes(own, bytes), theirs, ratio,
                 note);
}

void ranks_table_print(struct console *console, const struct run_config *config,
                       const struct trainer_summary *s)
{
    const struct zero_traffic *sent = &s->traffic;
    bool card = s->held.host_bytes > 0;
    const struct footprint *there = card ? &s->held.card : &s->held.process;
    struct ranks_volume formula = ranks_formula(config, s);
    double steps = (double)(s->steps - s->first_step), hidden = ranks_hidden(sent);
    char a[32], b[32];
    console_line(console, "\n  %-16s %12s %12s %8s", "over ranks", "measured", "formula", "ratio");
    print_row(console, "model state", (double)s->state_bytes, (double)s->whole_bytes,
              "a rank, against one that holds everything");
    if (there->held_bytes > 0)
        print_row(console, card ? "card" : "process", (double)there->held_bytes,
                  (double)there->accounted_bytes + (double)there->runtime_bytes,
                  card ? "of its ranks, against their accounts and runtime"
                       : "a rank, against its account and runtime");
    print_row(console, "parameters sent", (double)sent->gather / steps, formula.gather, "a step");
    print_row(console, "gradients sent", (double)sent->reduce / steps, formula.reduce, "a step");
    print_row(console, "control sent", (double)sent->control / steps, 0, "a step");
    if (isfinite(hidden))
        console_line(console, "  %s%-16s%s %11.1f%%  of %s of communication; compute waited %s",
                     console_style(console, STYLE_DIM), "hidden",
                     console_style(console, STYLE_PLAIN), 100 * hidden,
                     text_human_seconds(a, sent->in_flight), text_human_seconds(b, sent->waited));
    console_line(console, "%s", "");
}

void ranks_table_json(struct json_out *json, const struct run_config *config,
                      const struct trainer_summary *s)
{
    const struct zero_traffic *sent = &s->traffic;
    struct ranks_volume formula = ranks_formula(config, s);
    json_out_open(json, "ranks", '{');
    json_out_int(json, "count", s->ranks);
    json_out_int(json, "state_bytes", (int64_t)s->state_bytes);
    json_out_int(json, "whole_state_bytes", (int64_t)s->whole_bytes);
    json_out_int(json, "sent_gather", sent->gather);
    json_out_int(json, "sent_reduce", sent->reduce);
    json_out_int(json, "sent_control", sent->control);
    json_out_real(json, "formula_gather", formula.gather * (double)(s->steps - s->first_step));
    json_out_real(json, "formula_reduce", formula.reduce * (double)(s->steps - s->first_step));
    json_out_real(json, "comm_seconds", sent->in_flight);
    json_out_real(json, "comm_waited", sent->waited);
    json_out_real(json, "hidden", ranks_hidden(sent));
    json_out_close(json, '}');
}
