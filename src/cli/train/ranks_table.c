/* ranks_table -- bytes sent per step. There are Psi parameters in N/G copies over G ranks each
 * (ZeRO stage 0: G = 1) and R rounds (one if every worker has one micro-batch, or sums its own). An
 * element has b bytes on the wire and c bytes in a sum.
 *
 *                     parameters                gradients            sums between copies
 *     stage 0         -                         (N-1)/N Psi b R      (N-1)/N Psi c
 *     stages 1, 2     (G-1)/G Psi b             (N-1)/N Psi b R      (N/G-1)/N Psi c
 *     stage 3         (G-1)/G Psi b 2R          (N-1)/N Psi b R      (N/G-1)/N Psi c
 *     with servers    - (they send)             Psi b R              -
 *
 * In a pipeline this holds for the N ranks with the same PP stage, whose parameters are Psi. A
 * piece that two PP stages use is also sent from one to the other: a shard of the parameters, and a
 * reduce shard of the sums. Every micro-batch sends B T C elements over every boundary, forward and
 * backward. Where Muon updates matrices of Psi_m parameters, whose directions have d bytes each, a
 * rank sends (N/G + 1 - 2/G)/N Psi_m d on average: 2 (N-1)/N^2 with one copy. plan/formula.h has the
 * traffic of TP groups.
 */
#include "cli/train/train_view.h"
#include <math.h>
#include <stdio.h>
#include "train/run_plan.h"

struct ranks_volume ranks_formula(const struct run_config *config,
                                  const struct trainer_summary *summary)
{
    const struct plan_request request = run_plan_request(config, summary->ranks);
    int over = plan_pp_stages(&request) * plan_tp(&request), stage = config->ranks.stage;
    struct plan_rank rank = {.roster =
                                 roster_of(0, summary->ranks / over, (int)config->ranks.servers),
                             .part = summary->part};
    if (over == 1)
        rank.part.parameters = summary->parameters;
    if (stage == 0)
        rank.roster.copies = rank.roster.owners;
    else if (config->ranks.shard_group > 0)
        rank.roster.copies = rank.roster.owners / (int)config->ranks.shard_group;
    int64_t rounds = roster_rounds(&rank.roster, run_micro_batches(config));
    return (struct ranks_volume){
        .gather = plan_sent_formula(&request, rounds, &rank, stage, TRAFFIC_GATHER),
        .reduce = plan_sent_formula(&request, rounds, &rank, stage, TRAFFIC_REDUCE),
        .muon = plan_sent_formula(&request, rounds, &rank, stage, TRAFFIC_MUON),
        .pipe = plan_sent_formula(&request, rounds, &rank, stage, TRAFFIC_PIPE),
        .tensor = plan_sent_formula(&request, rounds, &rank, stage, TRAFFIC_TENSOR)};
}

static double share_hidden(double in_flight, double waited)
{
    if (!(in_flight > 0))
        return NAN;
    return waited < in_flight ? 1 - waited / in_flight : 0;
}

double ranks_hidden(const struct traffic *traffic)
{
    return share_hidden(traffic->in_flight, traffic->waited);
}

double ranks_tensor_hidden(const struct traffic *traffic)
{
    return share_hidden(traffic->tensor_in_flight, traffic->tensor_waited);
}

void ranks_describe(const struct trainer_facts *facts, char *out, size_t bytes)
{
    const struct ranks_config *ranks = &facts->config->ranks;
    const struct parallel_config *parallel = &facts->config->parallel;
    int used = snprintf(out, bytes, "%d (%s), ", facts->ranks, facts->comm);
    int64_t tp = parallel->tp > 1 ? parallel->tp : 1;
    if (tp > 1)
        used += snprintf(out + used, bytes - (size_t)used, "tensor parallel in groups of %lld%s, ",
                         (long long)tp, parallel->sequence ? " with sequence" : "");
    if (parallel->pp > 1)
        used += snprintf(out + used, bytes - (size_t)used, "pipeline%s of %lld stages (%s), ZeRO ",
                         facts->ranks > tp * parallel->pp ? "s" : "", (long long)parallel->pp,
                         timetable_words[parallel->schedule]);
    used += snprintf(out + used, bytes - (size_t)used, "stage %d", ranks->stage);
    if (ranks->stage == 3)
        used += snprintf(out + used, bytes - (size_t)used, ", prefetch %lld",
                         (long long)ranks->prefetch);
    if (ranks->shard_group > 0)
        used += snprintf(out + used, bytes - (size_t)used, ", a copy on every %lld",
                         (long long)ranks->shard_group);
    int64_t servers = ranks->servers * tp * (parallel->pp > 1 ? parallel->pp : 1);
    if (servers > 0)
        snprintf(out + used, bytes - (size_t)used, ", of them %lld server%s", (long long)servers,
                 servers == 1 ? "" : "s");
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

static void print_hidden(struct console *console, const struct traffic *sent)
{
    double hidden = ranks_hidden(sent);
    char a[32], b[32];
    if (!isfinite(hidden))
        return;
    console_line(console, "  %s%-16s%s %11.1f%%  of %s of communication; compute waited %s",
                 console_style(console, STYLE_DIM), "hidden", console_style(console, STYLE_PLAIN),
                 100 * hidden, text_human_seconds(a, sent->in_flight),
                 text_human_seconds(b, sent->waited));
    if (sent->tensor_in_flight > 0)
        console_line(console, "  %s%-16s%s %11.1f%%  of %s in TP groups; compute waited %s",
                     console_style(console, STYLE_DIM), "hidden, TP",
                     console_style(console, STYLE_PLAIN), 100 * ranks_tensor_hidden(sent),
                     text_human_seconds(a, sent->tensor_in_flight),
                     text_human_seconds(b, sent->tensor_waited));
    if (sent->stalled > 0)
        console_line(console, "  %s%-16s%s %12s  of that, for what a neighbour had not sent yet",
                     console_style(console, STYLE_DIM), "stalled",
                     console_style(console, STYLE_PLAIN), text_human_seconds(a, sent->stalled));
}

void ranks_table_print(struct console *console, const struct run_config *config,
                       const struct trainer_summary *s)
{
    const struct traffic *sent = &s->traffic;
    bool gpu = s->held.host_bytes > 0;
    const struct footprint *there = gpu ? &s->held.gpu : &s->held.process;
    struct ranks_volume formula = ranks_formula(config, s);
    double steps = (double)(s->steps - s->first_step);
    char whose[96] = "a rank, against one that holds everything";
    int pp = (int)config->parallel.pp, tp = config->parallel.tp > 1 ? (int)config->parallel.tp : 1;
    if (pp > 1)
        snprintf(whose, sizeof whose,
                 "a rank of stage %d, which has most, against one with everything",
                 s->state_rank / tp % pp);
    console_line(console, "\n  %-16s %12s %12s %8s", "over ranks", "measured", "formula", "ratio");
    print_row(console, "model state", (double)s->state_bytes, (double)s->whole_bytes, whose);
    if (there->held_bytes > 0)
        print_row(console, gpu ? "GPU" : "process", (double)there->held_bytes,
                  (double)there->accounted_bytes + (double)there->runtime_bytes,
                  gpu ? "of its ranks, against their accounts and runtime"
                      : "a rank, against its account and runtime");
    print_row(console, "parameters sent", (double)sent->sent[TRAFFIC_GATHER] / steps,
              formula.gather, "a step");
    print_row(console, "gradients sent", (double)sent->sent[TRAFFIC_REDUCE] / steps, formula.reduce,
              "a step");
    if (formula.muon > 0)
        print_row(console, "matrices sent", (double)sent->sent[TRAFFIC_MUON] / steps, formula.muon,
                  "a step: to be orthogonalized by Muon, and back");
    if (config->parallel.pp > 1)
        print_row(console, "to other stages", (double)sent->sent[TRAFFIC_PIPE] / steps,
                  formula.pipe, "a step: activations and their gradients, of stage 0");
    if (config->parallel.tp > 1)
        print_row(console, "to the TP group", (double)sent->sent[TRAFFIC_TENSOR] / steps,
                  formula.tensor, "a step: activations, and parts of gradients");
    print_row(console, "control sent", (double)sent->sent[TRAFFIC_CONTROL] / steps, 0, "a step");
    print_hidden(console, sent);
    console_line(console, "%s", "");
}

void ranks_table_json(struct json_out *json, const struct run_config *config,
                      const struct trainer_summary *s)
{
    const struct traffic *sent = &s->traffic;
    struct ranks_volume formula = ranks_formula(config, s);
    double steps = (double)(s->steps - s->first_step);
    json_out_open(json, "ranks", '{');
    json_out_int(json, "count", s->ranks);
    json_out_int(json, "state_bytes", (int64_t)s->state_bytes);
    json_out_int(json, "whole_state_bytes", (int64_t)s->whole_bytes);
    json_out_int(json, "state_rank", s->state_rank);
    json_out_int(json, "sent_gather", sent->sent[TRAFFIC_GATHER]);
    json_out_int(json, "sent_reduce", sent->sent[TRAFFIC_REDUCE]);
    json_out_int(json, "sent_muon", sent->sent[TRAFFIC_MUON]);
    json_out_int(json, "sent_pipe", sent->sent[TRAFFIC_PIPE]);
    json_out_int(json, "sent_tensor", sent->sent[TRAFFIC_TENSOR]);
    json_out_int(json, "sent_control", sent->sent[TRAFFIC_CONTROL]);
    json_out_real(json, "formula_gather", formula.gather * steps);
    json_out_real(json, "formula_reduce", formula.reduce * steps);
    json_out_real(json, "formula_muon", formula.muon * steps);
    json_out_real(json, "formula_pipe", formula.pipe * steps);
    json_out_real(json, "formula_tensor", formula.tensor * steps);
    json_out_real(json, "comm_seconds", sent->in_flight);
    json_out_real(json, "comm_waited", sent->waited);
    json_out_real(json, "comm_stalled", sent->stalled);
    json_out_real(json, "hidden", ranks_hidden(sent));
    json_out_real(json, "tensor_seconds", sent->tensor_in_flight);
    json_out_real(json, "tensor_waited", sent->tensor_waited);
    json_out_real(json, "tensor_hidden", ranks_tensor_hidden(sent));
    json_out_close(json, '}');
}
