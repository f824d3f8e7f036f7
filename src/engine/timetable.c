/* timetable -- what follows from a shape by arithmetic: peers, the order of passes, rounds in
 * flight.
 *
 * One order serves all kinds. Forwards take the rounds in groups, each group through all chunks;
 * backwards do the same from the last chunk to the first (2 chunks, groups of 2):
 *
 *     forwards    0.0 0.1 1.0 1.1  0.2 0.3 1.2 1.3 ...        chunk.round
 *     backwards   1.0 1.1 0.0 0.1  1.2 1.3 0.2 0.3 ...
 *
 * A rank does a forward while at most `warmup` forwards lack their backward, otherwise a backward.
 * A group of at least pp rounds returns to the first rank for its next chunk when that rank has
 * finished this one, or later: no bubble between groups. So when the rounds are no multiple of pp,
 * some groups are larger and none is smaller; fewer rounds than pp are one group.
 */
#include "engine/timetable_impl.h"

const char *const timetable_words[] = {"gpipe", "1f1b", "interleaved", "zero-bubble", NULL};

enum { MOST_RANKS = 1 << 16, MOST_CHUNKS = 1 << 10, MOST_ROUNDS = 1 << 24 };

enum status timetable_validate(struct env *env, const struct timetable_shape *shape)
{
    CHECK_LT((unsigned)shape->kind, sizeof timetable_words / sizeof *timetable_words - 1);
    const char *word = timetable_words[shape->kind];
    if (shape->pp < 1 || shape->pp > MOST_RANKS)
        return FAIL(env, CONFIG, "parallel.pp=%d is out of range: a pipeline has 1 to %d stages",
                    shape->pp, MOST_RANKS);
    if (shape->rounds < 1 || shape->rounds > MOST_ROUNDS)
        return FAIL(env, CONFIG,
                    "%d micro-batches per copy is out of range: a pipeline takes 1 to %d per step",
                    shape->rounds, MOST_ROUNDS);
    if (shape->chunks < 1 || shape->chunks > MOST_CHUNKS)
        return FAIL(env, CONFIG, "parallel.chunks=%d is out of range: a stage has 1 to %d",
                    shape->chunks, MOST_CHUNKS);
    if (shape->chunks > 1 && shape->kind != TIMETABLE_INTERLEAVED)
        return FAIL(
            env, CONFIG,
            "parallel.chunks=%d conflicts with parallel.schedule=%s, which has one chunk per "
            "stage; use parallel.schedule=interleaved",
            shape->chunks, word);
    if (shape->eager && shape->kind == TIMETABLE_GPIPE)
        return FAIL(env, CONFIG,
                    "parallel.eager conflicts with parallel.schedule=%s, which has all rounds in "
                    "flight; leave it off",
                    word);
    return STATUS_OK;
}

bool timetable_splits(const struct timetable_shape *shape)
{
    return shape->kind == TIMETABLE_ZERO_BUBBLE;
}

int timetable_peer(const struct timetable_shape *shape, int p, int verb)
{
    bool after = verb == TIMETABLE_SEND_ACTIVATION || verb == TIMETABLE_RECV_GRADIENT;
    CHECK(timetable_is_message(verb));
    return (p + (after ? 1 : shape->pp - 1)) % shape->pp;
}

bool timetable_has(const struct timetable_shape *shape, int p, int verb, int chunk)
{
    int s = timetable_pp_stage(shape, p, chunk);
    switch (verb) {
    case TIMETABLE_FORWARD: return true;
    case TIMETABLE_BACKWARD: return !timetable_splits(shape);
    case TIMETABLE_INPUT:
    case TIMETABLE_WEIGHT: return timetable_splits(shape);
    case TIMETABLE_RECV_ACTIVATION:
    case TIMETABLE_SEND_GRADIENT: return shape->pp > 1 && s > 0;
    case TIMETABLE_SEND_ACTIVATION:
    case TIMETABLE_RECV_GRADIENT: return shape->pp > 1 && s < timetable_pp_stages(shape) - 1;
    default: return false;
    }
}

/* --- the order of passes -------------------------------------------------------------------- */

/* Groups of at least pp rounds, as even as possible, larger ones first; fewer rounds than pp are
 * one group. */
struct groups {
    int64_t large, size; /* `large` groups have size + 1 rounds, the others `size` */
    int64_t largest;
};

static struct groups groups_of(const struct timetable_shape *shape)
{
    int count = shape->rounds < shape->pp ? 1 : shape->rounds / shape->pp;
    return (struct groups){shape->rounds % count, shape->rounds / count,
                           (shape->rounds + count - 1) / count};
}

/* Position of the n-th pass: rounds in earlier groups, rounds of its own group, earlier passes in
 * its group. */
struct position {
    int64_t rounds, size, within;
};

static struct position position_of(const struct timetable_shape *shape, int64_t n)
{
    struct groups g = groups_of(shape);
    int64_t large = (g.size + 1) * shape->chunks, small = g.size * shape->chunks;
    if (n < g.large * large)
        return (struct position){n / large * (g.size + 1), g.size + 1, n % large};
    n -= g.large * large;
    return (struct position){g.large * (g.size + 1) + n / small * g.size, g.size, n % small};
}

int64_t timetable_passes(const struct timetable_shape *shape)
{
    return (int64_t)shape->rounds * shape->chunks;
}

struct timetable_action timetable_forward(const struct timetable_shape *shape, int64_t n)
{
    struct position pos = position_of(shape, n);
    return (struct timetable_action){.verb = TIMETABLE_FORWARD,
                                     .chunk = (uint16_t)(pos.within / pos.size),
                                     .round = (int32_t)(pos.rounds + pos.within % pos.size)};
}

struct timetable_action timetable_backward(const struct timetable_shape *shape, int64_t n)
{
    struct timetable_action action = timetable_forward(shape, n);
    action.verb = timetable_splits(shape) ? TIMETABLE_INPUT : TIMETABLE_BACKWARD;
    action.chunk = (uint16_t)(shape->chunks - 1 - action.chunk);
    return action;
}

/* How many of the first n forwards belong to a chunk. For backwards, count chunks from the last. */
static int64_t passes_of(const struct timetable_shape *shape, int chunk, int64_t n)
{
    struct position pos = position_of(shape, n);
    int64_t more = pos.within - chunk * pos.size;
    return pos.rounds + (more < 0 ? 0 : more > pos.size ? pos.size : more);
}

/* The distance to the last rank, plus the chunks of a group that are not the last. `eager` doubles
 * the distance to make up for transfers: nobody then waits for a round that is on the wire. */
int64_t timetable_warmup(const struct timetable_shape *shape, int p)
{
    int64_t way = shape->pp - 1 - p;
    if (shape->kind == TIMETABLE_GPIPE)
        return timetable_passes(shape);
    return (shape->eager ? 2 * way : way) + (shape->chunks - 1) * groups_of(shape).largest;
}

int timetable_unweighted(const struct timetable_shape *shape)
{
    return shape->eager ? 2 * shape->pp - 1 : shape->pp;
}

/* --- rounds in flight ----------------------------------------------------------------------- */

/* After n forwards, n - ahead backwards have run, once there is one. */
static int64_t in_flight_by_order(const struct timetable_shape *shape, int p, int chunk)
{
    int64_t ahead = timetable_warmup(shape, p) + 1, passes = timetable_passes(shape), most = 0;
    if (shape->chunks == 1)
        return ahead;
    if (ahead >= passes)
        return shape->rounds;
    for (int64_t n = ahead; n <= passes; n++) {
        int64_t now =
            passes_of(shape, chunk, n) - passes_of(shape, shape->chunks - 1 - chunk, n - ahead);
        most = now > most ? now : most;
    }
    return most;
}

int timetable_in_flight(const struct timetable_shape *shape, int p, int chunk)
{
    int64_t most =
        timetable_splits(shape) ? timetable_unweighted(shape) : in_flight_by_order(shape, p, chunk);
    return most < shape->rounds ? (int)most : shape->rounds;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

struct timetable_peaks timetable_count_peaks(const struct timetable *t, int p, int chunk)
{
    struct timetable_peaks now = {0}, most = {0};
    bool receives_inputs = timetable_has(&t->shape, p, TIMETABLE_RECV_ACTIVATION, chunk);
    bool receives_gradients = timetable_has(&t->shape, p, TIMETABLE_RECV_GRADIENT, chunk);
    for (int64_t i = t->first[p]; i < t->first[p + 1]; i++) {
        int verb = t->actions[i].verb;
        if (t->actions[i].chunk != chunk)
            continue;
        /* counted from the begin of the action */
        now.in_flight += verb == TIMETABLE_FORWARD;
        now.held += verb == (receives_inputs ? TIMETABLE_RECV_ACTIVATION : TIMETABLE_FORWARD);
        now.split += verb == TIMETABLE_INPUT;
        now.gradients += verb == TIMETABLE_RECV_GRADIENT;
        most.in_flight = larger(most.in_flight, now.in_flight);
        most.held = larger(most.held, now.held);
        most.split = larger(most.split, now.split);
        most.gradients = larger(most.gradients, now.gradients);
        /* counted to the end of the action */
        now.in_flight -= verb == TIMETABLE_BACKWARD || verb == TIMETABLE_WEIGHT;
        now.held -= verb == TIMETABLE_BACKWARD || verb == TIMETABLE_WEIGHT;
        now.split -= verb == TIMETABLE_WEIGHT;
        now.gradients -=
            receives_gradients && (verb == TIMETABLE_BACKWARD || verb == TIMETABLE_INPUT);
    }
    return most;
}
