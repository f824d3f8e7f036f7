/* pipeline_eval -- an evaluation: forward passes as in a step (pipeline.c), and losses. A stage
 * takes the next micro-batch as soon as it has sent one on.
 */
#include "engine/pipeline_impl.h"

/* A stage takes pp rounds through one chunk, then the same rounds through its next chunk, so that
 * all stages are busy when they have several chunks. */
struct eval {
    struct pipeline *pipeline;
    int64_t rounds, count;
};

static struct chunk *eval_pass(const struct eval *eval, int64_t i, int64_t *round)
{
    const struct pipeline *p = eval->pipeline;
    int64_t chunks = p->table.shape.chunks, pp = p->table.shape.pp;
    int64_t group = i / (chunks * pp), first = group * pp;
    int64_t width = eval->rounds - first < pp ? eval->rounds - first : pp;
    int64_t rest = i - first * chunks;
    *round = first + rest % width;
    return &p->chunks[rest / width];
}

static bool is_idle(const struct eval *eval, int64_t round)
{
    return roster_micro_batch(zero_roster(eval->pipeline->engine->zero), eval->count, round) < 0;
}

/* Post the receive for the input of pass i. */
static void eval_receive(const struct eval *eval, int64_t i)
{
    struct pipeline *p = eval->pipeline;
    int64_t round;
    struct chunk *chunk = eval_pass(eval, i, &round);
    int pp_stages = comm_size(p->comm);
    if (chunk->has_input && !is_idle(eval, round))
        pipeline_receive(p, ACTS_IN, (p->pp_stage + pp_stages - 1) % pp_stages, &chunk->in,
                         (int)(round % chunk->in.count), chunk->in_elements, NULL);
}

static void eval_loss(struct pipeline *p, struct chunk *chunk, int64_t round, bool idle)
{
    int out = (int)(round % chunk->out.count);
    struct walk walk =
        engine_start_walk(p->engine, round, idle, chunk->first, chunk->end, WALK_FORWARD);
    walk.run.residual = chunk->out.at[out];
    engine_run_pass(p->engine, chunk->end - 1, PASS_EVAL, &walk);
    if (!idle)
        event_record(chunk->out.spent[out], p->engine->stream);
}

void pipeline_eval(struct pipeline *p, int64_t rounds, int64_t count)
{
    struct eval eval = {p, rounds, count};
    int64_t passes = rounds * p->table.shape.chunks;
    int pp_stages = comm_size(p->comm);
    eval_receive(&eval, 0);
    for (int64_t i = 0; i < passes; i++) {
        int64_t round;
        struct chunk *chunk = eval_pass(&eval, i, &round);
        bool idle = is_idle(&eval, round);
        if (i + 1 < passes)
            eval_receive(&eval, i + 1);
        pipeline_forward(p, chunk, round, idle, &(struct scope){0});
        if (chunk->has_output && !idle)
            pipeline_send(p, ACTS_OUT, (p->pp_stage + 1) % pp_stages, &chunk->out,
                          (int)(round % chunk->out.count), chunk->out_elements, NULL);
        if (chunk->has_loss)
            eval_loss(p, chunk, round, idle);
    }
}
