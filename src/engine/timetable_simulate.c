/* timetable_simulate -- executes the lists with clocks.
 *
 * A rank has one clock for its passes and one for its lane of transfers. An action begins at the
 * latest of the clocks that it needs. All of these stand still until the action is done, so the
 * times do not depend on the order of execution.
 */
#include "engine/timetable_simulate.h"
#include "engine/timetable_impl.h"

struct rank_clock {
    double now;     /* end of its last pass or wait */
    double lane;    /* end of its last transfer */
    double wire[2]; /* to the previous and the next rank: busy until then */
};

struct simulation {
    const struct timetable *t;
    const struct timetable_costs *costs;
    struct timetable_times *times;
    struct rank_clock *clocks; /* (pp) */
    double *inputs;            /* (stages, rounds) when the input of a forward arrives */
    double *gradients;         /* (stages, rounds) when the gradient of the output arrives */
};

static double later(double a, double b)
{
    return a > b ? a : b;
}

static int64_t cell(const struct simulation *s, int p, struct timetable_action action)
{
    return (int64_t)timetable_pp_stage(&s->t->shape, p, action.chunk) * s->t->shape.rounds +
           action.round;
}

static double seconds_of(const struct simulation *s, int p, int64_t i)
{
    struct timetable_action action = s->t->actions[i];
    if (s->costs->each)
        return s->costs->each[i];
    int pp_stage = timetable_pp_stage(&s->t->shape, p, action.chunk);
    switch (action.verb) {
    case TIMETABLE_FORWARD: return s->costs->forward[pp_stage];
    case TIMETABLE_INPUT: return s->costs->input[pp_stage];
    case TIMETABLE_WEIGHT: return s->costs->weight[pp_stage];
    default: return s->costs->input[pp_stage] + s->costs->weight[pp_stage];
    }
}

static void visit_pass(struct simulation *s, int p, int64_t i)
{
    struct timetable_action action = s->t->actions[i];
    struct rank_clock *clock = &s->clocks[p];
    double begin = clock->now, seconds = seconds_of(s, p, i);
    if (action.verb == TIMETABLE_FORWARD)
        begin = later(begin, s->inputs[cell(s, p, action)]);
    else if (action.verb != TIMETABLE_WEIGHT)
        begin = later(begin, s->gradients[cell(s, p, action)]);
    clock->now = begin + seconds;
    s->times->spans[i] = (struct timetable_span){begin, clock->now};
    s->times->ranks[p].busy += seconds;
    s->times->end = later(s->times->end, clock->now);
}

/* The span of a message once both ranks have reached it. */
static struct timetable_span transfer(const struct simulation *s, int p, int q, bool after)
{
    int wire = after && s->t->shape.pp > 2; /* with two ranks both neighbours are the same rank */
    struct rank_clock *from = &s->clocks[p], *to = &s->clocks[q];
    double whole = s->costs->latency + s->costs->transfer;
    if (s->costs->transfers == TIMETABLE_LINKS) {
        double begin = later(from->now, from->wire[wire]);
        from->wire[wire] = begin + s->costs->transfer;
        return (struct timetable_span){begin, begin + whole};
    }
    double begin = later(later(from->now, to->now), later(from->lane, to->lane));
    from->lane = to->lane = begin + whole;
    if (s->costs->transfers == TIMETABLE_BLOCKING)
        from->now = to->now = begin + whole;
    return (struct timetable_span){begin, begin + whole};
}

static void visit(void *user, int p, int64_t i, int q, int64_t j)
{
    struct simulation *s = user;
    if (q < 0) {
        visit_pass(s, p, i);
        return;
    }
    bool after = s->t->actions[i].verb == TIMETABLE_SEND_ACTIVATION;
    struct timetable_span span = transfer(s, p, q, after);
    double *arrival = after ? s->inputs : s->gradients;
    arrival[cell(s, q, s->t->actions[j])] = span.end;
    s->times->spans[i] = s->times->spans[j] = span;
    s->times->ranks[p].transfer += span.end - span.begin;
    s->times->ranks[q].transfer += span.end - span.begin;
    s->times->end = later(s->times->end, span.end);
}

enum status timetable_simulate(struct env *env, const struct timetable *t,
                               const struct timetable_costs *costs, struct timetable_times *times)
{
    enum status st;
    struct simulation s = {.t = t, .costs = costs, .times = times};
    size_t pp = (size_t)t->shape.pp;
    size_t cells = (size_t)timetable_pp_stages(&t->shape) * (size_t)t->shape.rounds;
    int64_t *at = NULL;
    *times = (struct timetable_times){0};
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "pipeline times", pp, sizeof *times->ranks,
                                 &times->ranks));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "pipeline times", (size_t)t->first[pp],
                                 sizeof *times->spans, &times->spans));
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "pipeline times", pp, sizeof *s.clocks, &s.clocks));
    TRY_OR(undo,
           mem_alloc_array(env, MEM_OTHER, "pipeline times", 2 * cells, sizeof(double), &s.inputs));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "pipeline times", pp, sizeof *at, &at));
    s.gradients = s.inputs + cells;
    TRY_OR(undo, timetable_execute(env, t, visit, &s, at));
    CHECK(timetable_executed(t, at));
    double busy = 0.0, idle = 0.0;
    for (int p = 0; p < t->shape.pp; p++) {
        times->ranks[p].idle = times->end - times->ranks[p].busy;
        busy += times->ranks[p].busy;
        idle += times->ranks[p].idle;
    }
    times->bubble = busy > 0.0 ? idle / busy : 0.0;
undo:
    mem_free(env, at);
    mem_free(env, s.inputs);
    mem_free(env, s.clocks);
    if (st != STATUS_OK)
        timetable_times_free(env, times);
    return st;
}

void timetable_times_free(struct env *env, struct timetable_times *times)
{
    mem_free(env, times->ranks);
    mem_free(env, times->spans);
    *times = (struct timetable_times){0};
}
