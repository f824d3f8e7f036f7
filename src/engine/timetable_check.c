/* timetable_check -- proves lists correct, independently of how they were made.
 *
 * First each rank's list alone: the position of each action against a table of what must precede
 * what. Then each pair of neighbours: the messages that one sends are those that the other
 * receives, in the same order. Then all ranks together: carried out with blocking sends, the lists
 * end. The order of data between ranks follows from these three.
 */
#include <string.h>
#include "engine/timetable_impl.h"

struct check {
    struct env *env;
    const struct timetable *t;
    int64_t
        *position; /* (verbs, chunks, rounds) of one rank: 1 + position in its list; 0 = missing */
    int64_t *at;   /* (pp) */
};

static int64_t *position_of(const struct check *c, int verb, int chunk, int round)
{
    const struct timetable_shape *shape = &c->t->shape;
    return &c->position[((int64_t)verb * shape->chunks + chunk) * shape->rounds + round];
}

/* --- one rank ------------------------------------------------------------------------------- */

struct step { /* an action of the rank that is being checked */
    int verb, chunk, round;
};

static char *name_of(const struct check *c, int p, struct step a, char *out)
{
    struct timetable_action action = {(uint16_t)a.verb, (uint16_t)a.chunk, a.round};
    return timetable_name(&c->t->shape, p, action, out);
}

static enum status find_positions(const struct check *c, int p)
{
    const struct timetable_shape *shape = &c->t->shape;
    char name[TIMETABLE_NAME_BYTES];
    size_t cells = (size_t)TIMETABLE_VERB_COUNT * (size_t)shape->chunks * (size_t)shape->rounds;
    memset(c->position, 0, cells * sizeof *c->position);
    for (int64_t i = c->t->first[p]; i < c->t->first[p + 1]; i++) {
        struct timetable_action a = c->t->actions[i];
        int64_t n = i - c->t->first[p];
        if (a.verb >= TIMETABLE_VERB_COUNT || a.chunk >= shape->chunks || a.round < 0 ||
            a.round >= shape->rounds)
            return FAIL(c->env, INTERNAL,
                        "pipeline: rank %d, action %lld: there is no verb %d of chunk %d, round %d",
                        p, (long long)n, a.verb, a.chunk, a.round);
        if (!timetable_has(shape, p, a.verb, a.chunk))
            return FAIL(c->env, INTERNAL, "pipeline: rank %d, action %lld: %s does not belong here",
                        p, (long long)n, timetable_name(shape, p, a, name));
        int64_t *position = position_of(c, a.verb, a.chunk, a.round);
        if (*position != 0)
            return FAIL(c->env, INTERNAL, "pipeline: rank %d does %s twice: actions %lld and %lld",
                        p, timetable_name(shape, p, a, name), (long long)*position - 1,
                        (long long)n);
        *position = n + 1;
    }
    return STATUS_OK;
}

static enum status check_complete(const struct check *c, int p)
{
    const struct timetable_shape *shape = &c->t->shape;
    char name[TIMETABLE_NAME_BYTES];
    for (int verb = 0; verb < TIMETABLE_VERB_COUNT; verb++)
        for (int chunk = 0; chunk < shape->chunks; chunk++)
            for (int r = 0; r < shape->rounds && timetable_has(shape, p, verb, chunk); r++)
                if (*position_of(c, verb, chunk, r) == 0)
                    return FAIL(c->env, INTERNAL, "pipeline: %s is missing in the list of rank %d",
                                name_of(c, p, (struct step){verb, chunk, r}, name), p);
    return STATUS_OK;
}

/* Action a must precede action b. */
static enum status check_before(const struct check *c, int p, struct step a, struct step b)
{
    char name[TIMETABLE_NAME_BYTES], other[TIMETABLE_NAME_BYTES];
    int64_t first = *position_of(c, a.verb, a.chunk, a.round);
    int64_t second = *position_of(c, b.verb, b.chunk, b.round);
    if (first < second)
        return STATUS_OK;
    return FAIL(c->env, INTERNAL, "pipeline: rank %d does %s (action %lld) before %s (action %lld)",
                p, name_of(c, p, b, name), (long long)second - 1, name_of(c, p, a, other),
                (long long)first - 1);
}

/* What must precede what: in one chunk and round, or between consecutive chunks or rounds. */
static const struct rule {
    int before, after;
    int chunk, round; /* of `before`, relative to `after` */
    bool alone;       /* only if one rank has all chunks, without messages */
} rules[] = {
    {TIMETABLE_RECV_ACTIVATION, TIMETABLE_FORWARD, 0, 0, false},
    {TIMETABLE_FORWARD, TIMETABLE_SEND_ACTIVATION, 0, 0, false},
    {TIMETABLE_FORWARD, TIMETABLE_BACKWARD, 0, 0, false},
    {TIMETABLE_FORWARD, TIMETABLE_INPUT, 0, 0, false},
    {TIMETABLE_RECV_GRADIENT, TIMETABLE_BACKWARD, 0, 0, false},
    {TIMETABLE_RECV_GRADIENT, TIMETABLE_INPUT, 0, 0, false},
    {TIMETABLE_BACKWARD, TIMETABLE_SEND_GRADIENT, 0, 0, false},
    {TIMETABLE_INPUT, TIMETABLE_SEND_GRADIENT, 0, 0, false},
    {TIMETABLE_INPUT, TIMETABLE_WEIGHT, 0, 0, false},
    {TIMETABLE_BACKWARD, TIMETABLE_BACKWARD, 0, -1, false},
    {TIMETABLE_INPUT, TIMETABLE_INPUT, 0, -1, false},
    {TIMETABLE_WEIGHT, TIMETABLE_WEIGHT, 0, -1, false},
    {TIMETABLE_FORWARD, TIMETABLE_FORWARD, -1, 0, true},
    {TIMETABLE_BACKWARD, TIMETABLE_BACKWARD, 1, 0, true},
    {TIMETABLE_INPUT, TIMETABLE_INPUT, 1, 0, true},
};

/* Applies only to actions that the rank has. */
static enum status check_rule(const struct check *c, int p, const struct rule *rule)
{
    const struct timetable_shape *shape = &c->t->shape;
    if (rule->alone && shape->pp > 1)
        return STATUS_OK;
    for (int chunk = 0; chunk < shape->chunks; chunk++) {
        int other = chunk + rule->chunk;
        if (other < 0 || other == shape->chunks || !timetable_has(shape, p, rule->before, other) ||
            !timetable_has(shape, p, rule->after, chunk))
            continue;
        for (int r = -rule->round; r < shape->rounds; r++)
            TRY(check_before(c, p, (struct step){rule->before, other, r + rule->round},
                             (struct step){rule->after, chunk, r}));
    }
    return STATUS_OK;
}

static enum status check_room(const struct check *c, int p)
{
    for (int chunk = 0; chunk < c->t->shape.chunks; chunk++) {
        int most = timetable_count_peaks(c->t, p, chunk).in_flight;
        int promised = timetable_in_flight(&c->t->shape, p, chunk);
        if (most > promised)
            return FAIL(c->env, INTERNAL,
                        "pipeline: rank %d has %d rounds of chunk %d in flight; memory is planned "
                        "for %d",
                        p, most, chunk, promised);
    }
    return STATUS_OK;
}

static enum status check_rank(const struct check *c, int p)
{
    TRY(find_positions(c, p));
    TRY(check_complete(c, p));
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        TRY(check_rule(c, p, &rules[i]));
    return check_room(c, p);
}

/* --- two ranks ------------------------------------------------------------------------------ */

/* The next action of rank `list`, from i on, that is a send to `peer` (a receive from it); or the
 * end. */
static int64_t next_message(const struct timetable *t, int list, int64_t i, bool send, int peer)
{
    for (; i < t->first[list + 1]; i++) {
        int verb = t->actions[i].verb;
        if (timetable_is_message(verb) && timetable_is_send(verb) == send &&
            timetable_peer(&t->shape, list, verb) == peer)
            break;
    }
    return i;
}

/* Whether `send` of rank p and `recv` of rank q are the same message. Gradients and activations
 * have the same size, so the receiver would not notice a mix-up. */
static bool is_same_message(const struct timetable_shape *shape, int p,
                            struct timetable_action send, int q, struct timetable_action recv)
{
    bool activation = send.verb == TIMETABLE_SEND_ACTIVATION;
    return activation == (recv.verb == TIMETABLE_RECV_ACTIVATION) && send.round == recv.round &&
           timetable_pp_stage(shape, p, send.chunk) + (activation ? 1 : -1) ==
               timetable_pp_stage(shape, q, recv.chunk);
}

static enum status check_pair(const struct check *c, int p, int q)
{
    const struct timetable *t = c->t;
    char sent[TIMETABLE_NAME_BYTES], awaited[TIMETABLE_NAME_BYTES];
    int64_t i = t->first[p], j = t->first[q];
    for (int64_t n = 0;; n++, i++, j++) {
        i = next_message(t, p, i, true, q);
        j = next_message(t, q, j, false, p);
        bool sends = i < t->first[p + 1], receives = j < t->first[q + 1];
        if (!sends && !receives)
            return STATUS_OK;
        if (sends)
            timetable_name(&t->shape, p, t->actions[i], sent);
        if (receives)
            timetable_name(&t->shape, q, t->actions[j], awaited);
        if (!sends || !receives || !is_same_message(&t->shape, p, t->actions[i], q, t->actions[j]))
            return FAIL(c->env, INTERNAL,
                        "pipeline: message %lld of rank %d to rank %d: %s is sent, %s is awaited",
                        (long long)n, p, q, sends ? sent : "nothing",
                        receives ? awaited : "nothing");
    }
}

/* --- all ranks ------------------------------------------------------------------------------ */

/* Carries out the lists one action at a time, with sends that block until they are received. If
 * this ends, any other way of carrying them out ends, too. */
struct execution {
    const struct timetable *t;
    timetable_visit_fn *visit;
    void *user;
    int64_t *at; /* (pp) */
    int *woken;  /* (pp) ranks that may be able to continue */
    int woken_count;
    bool *is_woken; /* (pp) */
};

static void wake(struct execution *e, int p)
{
    if (!e->is_woken[p])
        e->woken[e->woken_count++] = p;
    e->is_woken[p] = true;
}

/* Whether rank q is at the matching end of rank p's message. */
static bool meets(const struct execution *e, int p, int verb, int q)
{
    if (e->at[q] == e->t->first[q + 1])
        return false;
    int other = e->t->actions[e->at[q]].verb;
    return timetable_is_message(other) && timetable_is_send(other) != timetable_is_send(verb) &&
           timetable_peer(&e->t->shape, q, other) == p;
}

/* Carry out one action of rank p. Returns false if it has to wait. */
static bool execute_one(struct execution *e, int p)
{
    int64_t i = e->at[p];
    int verb = e->t->actions[i].verb;
    if (!timetable_is_message(verb)) {
        if (e->visit)
            e->visit(e->user, p, i, -1, -1);
        e->at[p]++;
        return true;
    }
    int q = timetable_peer(&e->t->shape, p, verb);
    if (!meets(e, p, verb, q))
        return false;
    if (e->visit && timetable_is_send(verb))
        e->visit(e->user, p, i, q, e->at[q]);
    else if (e->visit)
        e->visit(e->user, q, e->at[q], p, i);
    e->at[p]++;
    e->at[q]++;
    wake(e, q);
    return true;
}

enum status timetable_execute(struct env *env, const struct timetable *t, timetable_visit_fn *visit,
                              void *user, int64_t *at)
{
    enum status st;
    size_t pp = (size_t)t->shape.pp;
    struct execution e = {.t = t, .visit = visit, .user = user, .at = at};
    TRY(mem_alloc_array(env, MEM_OTHER, "timetable", pp, sizeof(int), &e.woken));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "timetable", pp, sizeof(bool), &e.is_woken));
    for (int p = 0; p < t->shape.pp; p++) {
        at[p] = t->first[p];
        wake(&e, p);
    }
    while (e.woken_count > 0) {
        int p = e.woken[--e.woken_count];
        e.is_woken[p] = false;
        while (at[p] < t->first[p + 1] && execute_one(&e, p))
            ;
    }
undo:
    mem_free(env, e.woken);
    mem_free(env, e.is_woken);
    return st;
}

bool timetable_executed(const struct timetable *t, const int64_t *at)
{
    for (int p = 0; p < t->shape.pp; p++)
        if (at[p] != t->first[p + 1])
            return false;
    return true;
}

/* Follow the chain of waiting ranks until it repeats, and report that cycle. */
static enum status report_cycle(const struct check *c)
{
    const struct timetable *t = c->t;
    char name[TIMETABLE_NAME_BYTES];
    struct text text;
    int p = 0;
    while (c->at[p] == t->first[p + 1])
        p++;
    for (int i = 0; i < t->shape.pp; i++) /* after pp steps p is in the cycle */
        p = timetable_peer(&t->shape, p, t->actions[c->at[p]].verb);
    text_init(&text, c->env);
    for (int q = p, n = 0; n == 0 || q != p; n++) {
        text_printf(&text, "%srank %d at action %lld, %s", n ? "; " : "", q,
                    (long long)(c->at[q] - t->first[q]),
                    timetable_name(&t->shape, q, t->actions[c->at[q]], name));
        q = timetable_peer(&t->shape, q, t->actions[c->at[q]].verb);
    }
    enum status st = FAIL(c->env, INTERNAL, "pipeline: deadlock: %s", text_string(&text));
    text_free(&text);
    return st;
}

enum status timetable_check(struct env *env, const struct timetable *t)
{
    enum status st;
    struct check c = {.env = env, .t = t};
    size_t cells = (size_t)t->shape.chunks * (size_t)t->shape.rounds * TIMETABLE_VERB_COUNT;
    TRY(timetable_validate(env, &t->shape));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "timetable", cells, sizeof(int64_t), &c.position));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "timetable", (size_t)t->shape.pp, sizeof(int64_t),
                                 &c.at));
    int pp = t->shape.pp;
    for (int p = 0; p < pp; p++)
        TRY_OR(undo, check_rank(&c, p));
    for (int p = 0; p < pp && pp > 1; p++) {
        TRY_OR(undo, check_pair(&c, p, (p + 1) % pp));
        if (pp > 2) /* with two ranks both neighbours are the same rank */
            TRY_OR(undo, check_pair(&c, p, (p + pp - 1) % pp));
    }
    TRY_OR(undo, timetable_execute(env, t, NULL, NULL, c.at));
    if (!timetable_executed(t, c.at))
        st = report_cycle(&c);
undo:
    mem_free(env, c.position);
    mem_free(env, c.at);
    return st;
}
