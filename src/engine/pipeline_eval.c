/* pipeline_eval -- an evaluation: the way of a step (pipeline.c) without coming back. A stage takes the
 * next micro-batch as soon as it has passed one on.
 */
#include "engine/pipeline_impl.h"

/* The passes of a stage: some rounds through one chunk, then through the next, so that stages with
 * several chunks work at once, too. */
struct eval_walk {
    struct pipeline *pipeline;
    int64_t rounds, count;
};

static struct chunk *eval_pass(const struct eval_walk *walk, int64_t i, int64_t *round)
{
    const struct pipeline *p = walk->pipeline;
    int64_t chunks = p->table.shape.chunks, pp = p->table.shape.pp;
    int64_t group = i / (chunks * pp), first = group * pp;
    int64_t width = walk->rounds - first < pp ? walk->rounds - first : pp;
    int64_t rest = i - first * chunks;
    *round = first + rest % width;
    return &p->chunks[rest / width];
}

static bool is_idle(const struct eval_walk *walk, int64_t round)
{
    return roster_micro_batch(zero_roster(walk->pipeline->engine->zero), walk->count, round) < 0;
}

/* Ask for the input of pass i. */
static void eval_ask(const struct eval_walk *walk, int64_t i)
{
    struct pipeline *p = walk->pipeline;
    int64_t round;
    struct chunk *chunk = eval_pass(walk, i, &round);
    int pp_stages = comm_size(p->comm);
    if (chunk->has_input && !is_idle(walk, round))
        pipeline_receive(p, ACTS_IN, (p->pp_stage + pp_stages - 1) % pp_stages, &chunk->in,
                         (int)(round % chunk->in.count), NULL);
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
    struct eval_walk walk = {p, rounds, count};
    int64_t passes = rounds * p->table.shape.chunks;
    int pp_stages = comm_size(p->comm);
    eval_ask(&walk, 0);
    for (int64_t i = 0; i < passes; i++) {
        int64_t round;
        struct chunk *chunk = eval_pass(&walk, i, &round);
        bool idle = is_idle(&walk, round);
        if (i + 1 < passes)
            eval_ask(&walk, i + 1);
        pipeline_forward(p, chunk, round, idle, NULL);
        if (chunk->has_output && !idle)
            pipeline_send(p, ACTS_OUT, (p->pp_stage + 1) % pp_stages, &chunk->out,
                          (int)(round % chunk->out.count), NULL);
        if (chunk->has_loss)
            eval_loss(p, chunk, round, idle);
    }
}
