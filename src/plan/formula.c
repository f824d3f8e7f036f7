/* formula -- closed formulas for state, traffic, activations and libraries.
 */
#include "plan/formula.h"

const struct state_widths state_fp32 = {.param = 4, .grad = 4, .optimizer = 8};
const struct state_widths state_mixed = {.param = 2, .grad = 2, .optimizer = 12};

static bool is_owner(const struct roster *roster)
{
    return roster_shard(roster, roster->rank) >= 0;
}

/* The fraction of something that a rank holds. */
static double held(const struct roster *roster, bool cut)
{
    if (roster_is_worker(roster) && !cut)
        return 1.0;
    return is_owner(roster) ? 1.0 / roster_shards(roster) : 0.0;
}

/* Bytes of gradients per parameter. */
static double gradients(const struct roster *roster, bool cut, struct state_widths widths)
{
    bool local = widths.local > 0 && roster->size > 1 && roster_is_worker(roster);
    return local ? widths.local : widths.grad * held(roster, cut);
}

double formula_state(const struct roster *roster, struct sharding cut, double parameters,
                     struct state_widths widths)
{
    double optimizer =
        is_owner(roster) ? held(roster, cut.optim) : 0.0; /* otherwise servers have it */
    return parameters * (widths.param * held(roster, cut.params) +
                         gradients(roster, cut.grads, widths) + widths.optimizer * optimizer);
}

/* An owner sends its shard to every other worker of its copy. */
static double gathered(const struct roster *roster)
{
    int shards = roster_shards(roster), others = roster->workers;
    if (!is_owner(roster))
        return 0.0;
    if (roster_is_worker(roster)) /* without servers the owners of a copy are its workers */
        others = shards - 1;
    return (double)others / shards;
}

/* An owner sends its reduce shard to the other holders of the shard. */
static double shared(const struct roster *roster)
{
    return is_owner(roster) ? (double)(roster->copies - 1) / roster->owners : 0.0;
}

/* A worker sends all gradients except the reduce shard that it sums itself. */
static double reduced(const struct roster *roster)
{
    if (!roster_is_worker(roster))
        return 0.0;
    return is_owner(roster) ? 1.0 - 1.0 / roster->owners : 1.0;
}

/* Elements: the directions of its shards to the owners that orthogonalize them, and the results of
 * its own tensors to all copies. */
static double orthogonalized(const struct roster *roster, const struct muon_counts *muon)
{
    return (double)(muon->held - muon->kept + roster->copies * muon->given - muon->kept);
}

/* Everything TP ranks send each other. Servers send only gradients and norms. */
static double sent_in_tp_group(const struct roster *roster, const struct volume *volume)
{
    enum { LOSS_BYTES = 3 * 8, NORM_BYTES = 8 };
    double others = volume->tp - 1, part = others / volume->tp;
    double rounds = roster_is_worker(roster) ? (double)volume->rounds : 0.0;
    double partial = is_owner(roster) ? volume->partial / roster->owners * volume->total : 0.0;
    if (volume->tp <= 1)
        return 0.0;
    return rounds * (volume->meetings * part * volume->stream_bytes +
                     others * volume->loss_rows * LOSS_BYTES) +
           partial + (volume->norms ? others * NORM_BYTES : 0.0);
}

double formula_sent(const struct roster *roster, struct sharding cut, const struct volume *volume,
                    enum traffic_purpose purpose)
{
    double learned = volume->parameters - volume->frozen;
    double gathered_params =
        cut.params ? (double)volume->rounds * (2.0 * volume->parameters - volume->once) : learned;
    double shards = roster_shards(roster), owners = roster->owners;
    switch (purpose) {
    case TRAFFIC_GATHER:
        return volume->value * gathered_params * gathered(roster) +
               volume->total * learned * shared(roster) +
               (is_owner(roster) ? volume->lent / shards * volume->value : 0.0);
    case TRAFFIC_REDUCE:
        return learned * volume->value * (double)volume->reductions * reduced(roster) +
               (is_owner(roster) ? volume->borrowed / owners * volume->total : 0.0);
    case TRAFFIC_MUON: return volume->direction * orthogonalized(roster, &volume->muon);
    case TRAFFIC_PIPE:
        return roster_is_worker(roster)
                   ? (double)volume->rounds * volume->messages * volume->message_bytes
                   : 0.0;
    case TRAFFIC_TENSOR: return sent_in_tp_group(roster, volume);
    default: return 0.0;
    }
}

struct layers formula_layers(const struct spread_counts *part,
                             const struct parallel_config *parallel, int recompute)
{
    return (struct layers){.blocks = part->inner_units,
                           .forward = part->forward_units,
                           .embedding = part->first,
                           .head = part->last,
                           .recompute = recompute,
                           .sequence = parallel->sequence,
                           .regather = parallel->regather};
}

double formula_meetings(const struct layers *layers)
{
    double forward = 4, block = 8;
    bool again = layers->sequence && layers->regather;
    if (again)
        block += 2;
    if (layers->recompute == RECOMPUTE_SELECTIVE && layers->sequence && !again)
        block += 2;
    if (layers->recompute == RECOMPUTE_FULL)
        block += layers->sequence ? 3 : 2;
    return (layers->blocks - layers->forward) * block + layers->forward * forward +
           2.0 * layers->embedding + 2.0 * layers->head;
}

double formula_activations(const struct activation_shape *shape, int recompute)
{
    enum {
        MASKS = 2,
        WHOLE = 4,
        CUT = 12,
        SOFTMAX = 2
    }; /* values per row and width; WHOLE and
                                                             MASKS are not split by tp */
    double t = shape->tp > 1 ? shape->tp : 1, rows = shape->tokens * shape->batch;
    double stream = rows * shape->width;
    double whole = WHOLE * shape->value + MASKS, cut = CUT * shape->value;
    double attention = (SOFTMAX * shape->value + 1) * shape->heads * shape->tokens * rows / t;
    if (recompute == RECOMPUTE_FULL)
        return stream * shape->value;
    double kept = stream * (shape->sequence ? (whole + cut) / t : whole + cut / t);
    return recompute == RECOMPUTE_NONE ? kept + attention : kept;
}

/* Measured on Linux: 0.8 MiB for a single rank; with Open MPI 4.1 3.6, 3.7, 4.0 and 4.4 MiB for 2,
 * 4, 8 and 16 ranks, each of which maps the shared segments of the others; with MPICH 6.7 and 6.9
 * for 2 and 4. The estimate is the larger. */
double formula_runtime(int local)
{
    const double mib = 1024.0 * 1024;
    return local == 1 ? mib : 6.6 * mib + local * mib / 16;
}

/* Libraries are listed separately where they could be measured separately. Memory in use minus the
 * account, in a training step on an H200 (driver 580, CUDA 13.0, cuDNN 9.14), was 540.5, 542.3 and
 * 541.9 MiB for models of 22, 59 and 62 GiB; 541 were left when everything was freed. NCCL is
 * unknown: it has not run on several GPUs. */
const struct gpu_part formula_gpu_parts[] = {
    {"CUDA's context, cuBLASLt and cuDNN", 541.0 * 1024 * 1024},
    {NULL, 0},
};

double formula_gpu_runtime(void)
{
    double bytes = 0;
    for (const struct gpu_part *part = formula_gpu_parts; part->library != NULL; part++)
        bytes += part->bytes;
    return bytes;
}
