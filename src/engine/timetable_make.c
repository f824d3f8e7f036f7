/* timetable_make -- makes the lists of a shape by simulating the step on a clock.
 *
 * All ranks run on one clock, twice. The first run, with transfers that take no time, decides the
 * order of each rank's passes. The second, with transfers that take a little, decides where
 * messages go between them. An action is appended to its list when it ends (a message: when it is
 * sent), and a message is appended to the lists of both its ranks at once. So all lists are parts
 * of one order, the order of appending, and law 3 of timetable.h holds whatever the real times are.
 *
 * Among messages that are sent at the same moment, those of even ranks are appended first. A rank
 * sends one message at a time, so at most a handful depend on each other, rather than the whole
 * pipeline from neighbour to neighbour.
 *
 * Ticks are nominal: a forward takes one unit, a backward two, each of its parts one. Real costs
 * change when an action happens, never the lists.
 */
#include "engine/timetable_impl.h"

enum { UNIT_TO_ORDER = 1, UNIT_TO_PLACE = 4 }; /* ticks; a transfer takes 0 and 1 ticks */

/* Growing lists: action n of rank p is at [first[p] + n]. */
struct lists {
    struct timetable_action *actions;
    int64_t *first; /* (pp + 1) */
    int64_t *count; /* (pp) */
};

/* A simulated rank. */
struct player {
    int64_t forwards, backwards, weights; /* begun */
    int64_t replayed;                     /* begun, in the second run */
    struct timetable_action pass, made;   /* the last one begun; the last one whose result is sent
                                             */
    int64_t until;                        /* when the pass ends */
    bool busy, sends, sent;               /* in a pass; a message is to be sent; it is in flight */
};

struct play {
    const struct timetable_shape *shape;
    const struct lists *order; /* of passes, from the first run; NULL in the first run */
    struct lists *out;
    struct player *players; /* (pp) */
    int32_t *inputs;        /* (stages) n: the inputs of rounds 0 .. n - 1 have arrived */
    int32_t *gradients;     /* (stages) the same for gradients of the output; last stage: for losses
                               */
    int64_t time, unit;
};

static void add_action(struct lists *lists, int p, struct timetable_action action)
{
    CHECK_LT(lists->first[p] + lists->count[p], lists->first[p + 1]);
    lists->actions[lists->first[p] + lists->count[p]++] = action;
}

/* --- which pass is next --------------------------------------------------------------------- */

static bool is_ready(const struct play *play, int p, struct timetable_action pass)
{
    int s = timetable_pp_stage(play->shape, p, pass.chunk);
    switch (pass.verb) {
    case TIMETABLE_FORWARD: return pass.round < play->inputs[s];
    case TIMETABLE_WEIGHT: return true; /* backward-input precedes it in every order */
    default: return pass.round < play->gradients[s];
    }
}

/* The next forward or backward, in the order of timetable.c. */
static bool next_in_turn(const struct play *play, int p, struct timetable_action *pass)
{
    const struct timetable_shape *shape = play->shape;
    struct player *me = &play->players[p];
    int64_t passes = timetable_passes(shape);
    if (me->backwards == passes)
        return false;
    bool forward =
        me->forwards < passes && me->forwards - me->backwards <= timetable_warmup(shape, p);
    *pass =
        forward ? timetable_forward(shape, me->forwards) : timetable_backward(shape, me->backwards);
    if (!is_ready(play, p, *pass))
        return false;
    if (forward && timetable_splits(shape) &&
        me->forwards - me->weights == timetable_unweighted(shape))
        return false; /* a backward-weight must free memory first */
    me->forwards += forward;
    me->backwards += !forward;
    return true;
}

/* zero-bubble: a backward-weight when nothing else is due. */
static bool next_weight(const struct play *play, int p, struct timetable_action *pass)
{
    struct player *me = &play->players[p];
    if (!timetable_splits(play->shape) || me->weights == me->backwards)
        return false;
    *pass = (struct timetable_action){.verb = TIMETABLE_WEIGHT, .round = (int32_t)me->weights++};
    return true;
}

static bool next_in_order(const struct play *play, int p, struct timetable_action *pass)
{
    struct player *me = &play->players[p];
    if (me->replayed == play->order->count[p])
        return false;
    *pass = play->order->actions[play->order->first[p] + me->replayed];
    if (!is_ready(play, p, *pass))
        return false;
    me->replayed++;
    return true;
}

/* --- the clock ------------------------------------------------------------------------------ */

/* Begin the next pass of rank p if possible; returns whether it is busy. */
static bool start(struct play *play, int p)
{
    struct player *me = &play->players[p];
    if (me->busy)
        return true;
    me->busy = play->order ? next_in_order(play, p, &me->pass)
                           : next_in_turn(play, p, &me->pass) || next_weight(play, p, &me->pass);
    me->until = play->time + (me->pass.verb == TIMETABLE_BACKWARD ? 2 : 1) * play->unit;
    return me->busy;
}

/* The result of rank p arrives at the stage that waits for it. */
static void arrive(struct play *play, int p)
{
    struct player *me = &play->players[p];
    int s = timetable_pp_stage(play->shape, p, me->made.chunk);
    if (me->made.verb == TIMETABLE_FORWARD)
        play->inputs[s + 1]++;
    else
        play->gradients[s - 1]++;
    me->sent = false;
}

static int finish(struct play *play, int p)
{
    struct player *me = &play->players[p];
    int s = timetable_pp_stage(play->shape, p, me->pass.chunk), verb = me->pass.verb;
    bool forward = verb == TIMETABLE_FORWARD, last = s == timetable_pp_stages(play->shape) - 1;
    if (!me->busy || me->until != play->time)
        return 0;
    me->busy = false;
    add_action(play->out, p, me->pass);
    if (forward && last) {
        play->gradients[s]++;
        return 1;
    }
    if (verb == TIMETABLE_WEIGHT || (!forward && s == 0))
        return 1; /* nobody waits for the result */
    me->made = me->pass;
    me->sends = play->shape->pp > 1;
    if (!me->sends)
        arrive(play, p);
    return 1;
}

static void send_made(struct play *play, int p)
{
    struct player *me = &play->players[p];
    bool forward = me->made.verb == TIMETABLE_FORWARD;
    struct timetable_action action = me->made;
    if (!me->sends)
        return;
    me->sends = false;
    me->sent = true;
    action.verb = forward ? TIMETABLE_SEND_ACTIVATION : TIMETABLE_SEND_GRADIENT;
    int peer = timetable_peer(play->shape, p, action.verb);
    int s = timetable_pp_stage(play->shape, p, action.chunk) + (forward ? 1 : -1);
    if (play->order != NULL) { /* the second run places messages */
        add_action(play->out, p, action);
        action.verb = forward ? TIMETABLE_RECV_ACTIVATION : TIMETABLE_RECV_GRADIENT;
        action.chunk = (uint16_t)(s / play->shape->pp);
        add_action(play->out, peer, action);
    }
}

static void arrive_all(struct play *play)
{
    for (int p = 0; p < play->shape->pp; p++)
        if (play->players[p].sent)
            arrive(play, p);
}

static void run(struct play *play, int64_t passes)
{
    const int pp = play->shape->pp;
    for (play->time = 0; passes > 0; play->time++) {
        bool moves = false;
        arrive_all(play); /* sent one tick ago */
        for (int p = 0; p < pp; p++)
            passes -= finish(play, p);
        for (int p = 0; p < pp; p += 2)
            send_made(play, p);
        for (int p = 1; p < pp; p += 2)
            send_made(play, p);
        if (play->order == NULL)
            arrive_all(play);
        for (int p = 0; p < pp; p++)
            moves = start(play, p) || play->players[p].sent || moves;
        CHECK(moves || passes == 0);
    }
}

/* --- lists ---------------------------------------------------------------------------------- */

static void lists_free(struct env *env, struct lists *lists)
{
    mem_free(env, lists->actions);
    mem_free(env, lists->first);
    mem_free(env, lists->count);
    *lists = (struct lists){0};
}

/* Allocate lists for each rank's actions with verbs below `verbs`. */
static enum status lists_create(struct env *env, const struct timetable_shape *shape, int verbs,
                                struct lists *lists)
{
    enum status st;
    size_t pp = (size_t)shape->pp;
    *lists = (struct lists){0};
    TRY(mem_alloc_array(env, MEM_OTHER, "timetable", pp + 1, sizeof(int64_t), &lists->first));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "timetable", pp, sizeof(int64_t), &lists->count));
    for (int p = 0; p < shape->pp; p++) {
        lists->first[p + 1] = lists->first[p];
        for (int verb = 0; verb < verbs; verb++)
            for (int chunk = 0; chunk < shape->chunks; chunk++)
                if (timetable_has(shape, p, verb, chunk))
                    lists->first[p + 1] += shape->rounds;
    }
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "timetable", (size_t)lists->first[pp],
                                 sizeof *lists->actions, &lists->actions));
    return STATUS_OK;
undo:
    lists_free(env, lists);
    return st;
}

/* Simulate the step once and append its actions to `out`. */
static enum status play_step(struct env *env, const struct timetable_shape *shape,
                             const struct lists *order, struct lists *out)
{
    enum status st;
    size_t pp = (size_t)shape->pp, pp_stages = (size_t)timetable_pp_stages(shape);
    struct play play = {
        .shape = shape, .order = order, .out = out, .unit = order ? UNIT_TO_PLACE : UNIT_TO_ORDER};
    TRY(mem_alloc_array(env, MEM_OTHER, "timetable", pp, sizeof *play.players, &play.players));
    TRY_OR(undo_players, mem_alloc_array(env, MEM_OTHER, "timetable", 2 * pp_stages,
                                         sizeof(int32_t), &play.inputs));
    play.gradients = play.inputs + pp_stages;
    play.inputs[0] = shape->rounds;
    run(&play, (timetable_splits(shape) ? 3 : 2) * (int64_t)pp_stages * shape->rounds);
    mem_free(env, play.inputs);
undo_players:
    mem_free(env, play.players);
    return st;
}

enum status timetable_create(struct env *env, const struct timetable_shape *shape,
                             struct timetable *t)
{
    enum status st;
    struct lists order = {0}, all = {0};
    *t = (struct timetable){0};
    TRY(timetable_validate(env, shape));
    TRY_OR(undo, lists_create(env, shape, TIMETABLE_SEND_ACTIVATION, &order));
    TRY_OR(undo, lists_create(env, shape, TIMETABLE_VERB_COUNT, &all));
    TRY_OR(undo, play_step(env, shape, NULL, &order));
    TRY_OR(undo, play_step(env, shape, &order, &all));
    *t = (struct timetable){.shape = *shape, .actions = all.actions, .first = all.first};
    all.actions = NULL;
    all.first = NULL;
undo:
    lists_free(env, &order);
    lists_free(env, &all);
    return st;
}

void timetable_free(struct env *env, struct timetable *t)
{
    mem_free(env, t->actions);
    mem_free(env, t->first);
    *t = (struct timetable){0};
}
