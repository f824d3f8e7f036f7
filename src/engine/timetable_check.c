/* timetable_check -- proves lists right, without a thought of how they were made.
 *
 * First each rank's list by itself: a table of where each action stands, against a table of what
 * must come before what. Then each pair of neighbours: what one sends is what the other receives,
 * in order. Then all together: carried out with sends that wait, they end. The order of data
 * between ranks follows from the three.
 */
#include <string.h>
#include "engine/timetable.h"
#include "engine/timetable_impl.h"

struct check {
    struct env *env;
    const struct timetable *t;
    int64_t *place; /* (verbs, chunks, rounds) of one rank: 1 + where in its list; 0 = not there */
    int64_t *at;    /* (pp) */
};

static int64_t *place_of(const struct check *c, int verb, int chunk, int round)
{
    const struct timetable_shape *shape = &c->t->shape;
    return &c->place[((int64_t)verb * shape->chunks + chunk) * shape->rounds + round];
}

/* --- one rank ------------------------------------------------------------------------------- */

struct step_of { /* an action of the rank that is looked at */
    int verb, chunk, round;
};

static char *name_of(const struct check *c, int p, struct step_of a, char *out)
{
    struct timetable_action action = {(uint16_t)a.verb, (uint16_t)a.chunk, a.round};
    return timetable_name(&c->t->shape, p, action, out);
}

static enum status find_places(const struct check *c, int p)
{
    const struct timetable_shape *shape = &c->t->shape;
    char name[TIMETABLE_NAME_BYTES];
    size_t cells = (size_t)TIMETABLE_VERB_COUNT * (size_t)shape->chunks * (size_t)shape->rounds;
    memset(c->place, 0, cells * sizeof *c->place);
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
        int64_t *place = place_of(c, a.verb, a.chunk, a.round);
        if (*place != 0)
            return FAIL(c->env, INTERNAL, "pipeline: rank %d does %s twice: actions %lld and %lld",
                        p, timetable_name(shape, p, a, name), (long long)*place - 1, (long long)n);
        *place = n + 1;
    }
    return STATUS_OK;
}

static enum status check_all_there(const struct check *c, int p)
{
    const struct timetable_shape *shape = &c->t->shape;
    char name[TIMETABLE_NAME_BYTES];
    for (int verb = 0; verb < TIMETABLE_VERB_COUNT; verb++)
        for (int chunk = 0; chunk < shape->chunks; chunk++)
            for (int r = 0; r < shape->rounds && timetable_has(shape, p, verb, chunk); r++)
                if (*place_of(c, verb, chunk, r) == 0)
                    return FAIL(c->env, INTERNAL, "pipeline: %s is missing in the list of rank %d",
                                name_of(c, p, (struct step_of){verb, chunk, r}, name), p);
    return STATUS_OK;
}

/* `a` comes before `b`. */
static enum status check_before(const struct check *c, int p, struct step_of a, struct step_of b)
{
    char name[TIMETABLE_NAME_BYTES], other[TIMETABLE_NAME_BYTES];
    int64_t first = *place_of(c, a.verb, a.chunk, a.round);
    int64_t second = *place_of(c, b.verb, b.chunk, b.round);
    if (first < second)
        return STATUS_OK;
    return FAIL(c->env, INTERNAL, "pipeline: rank %d does %s (action %lld) before %s (action %lld)",
                p, name_of(c, p, b, name), (long long)second - 1, name_of(c, p, a, other),
                (long long)first - 1);
}

/* What must come before what, in one chunk and round, or from one chunk or round to the next. */
static const struct rule {
    int before, after;
    int chunk, round; /* of `before`, seen from `after` */
    bool alone;       /* only where chunks follow each other on one rank, without messages */
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

/* Where the rank has both. */
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
            TRY(check_before(c, p, (struct step_of){rule->before, other, r + rule->round},
                             (struct step_of){rule->after, chunk, r}));
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
                        "pipeline: rank %d has %d rounds of chunk %d in flight; there is room "
                        "for %d",
                        p, most, chunk, promised);
    }
    return STATUS_OK;
}

static enum status check_rank(const struct check *c, int p)
{
    TRY(find_places(c, p));
    TRY(check_all_there(c, p));
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        TRY(check_rule(c, p, &rules[i]));
    return check_room(c, p);
}

/* --- two ranks ------------------------------------------------------------------------------ */

/* The next action of `list`, from i on, that is a send to (a receive from) `peer`; or its end. */
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

/* Whether what `send` of rank p sends is what `recv` of rank q awaits. Gradients and activations
 * are messages of one size, so a mistake would not be seen by who receives it. */
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

/* Follow who waits for whom from a rank that waits, until one comes again: that is the circle. */
static enum status say_circle(const struct check *c)
{
    const struct timetable *t = c->t;
    char name[TIMETABLE_NAME_BYTES];
    struct text text;
    int p = 0;
    while (c->at[p] == t->first[p + 1])
        p++;
    for (int i = 0; i < t->shape.pp; i++) /* so far, it is in the circle */
        p = timetable_peer(&t->shape, p, t->actions[c->at[p]].verb);
    text_init(&text, c->env);
    for (int q = p, n = 0; n == 0 || q != p; n++) {
        text_printf(&text, "%srank %d at action %lld, %s", n ? "; " : "", q,
                    (long long)(c->at[q] - t->first[q]),
                    timetable_name(&t->shape, q, t->actions[c->at[q]], name));
        q = timetable_peer(&t->shape, q, t->actions[c->at[q]].verb);
    }
    enum status st =
        FAIL(c->env, INTERNAL, "pipeline: ranks would wait for each other: %s", text_string(&text));
    text_free(&text);
    return st;
}

static enum status check_end(const struct check *c)
{
    TRY(timetable_execute(c->env, c->t, NULL, NULL, c->at));
    return timetable_executed(c->t, c->at) ? STATUS_OK : say_circle(c);
}

static enum status check_lists(const struct check *c)
{
    int pp = c->t->shape.pp;
    for (int p = 0; p < pp; p++)
        TRY(check_rank(c, p));
    for (int p = 0; p < pp && pp > 1; p++) {
        TRY(check_pair(c, p, (p + 1) % pp));
        if (pp > 2) /* of two ranks each is the other's both neighbours */
            TRY(check_pair(c, p, (p + pp - 1) % pp));
    }
    return check_end(c);
}

enum status timetable_check(struct env *env, const struct timetable *t)
{
    enum status st;
    struct check c = {.env = env, .t = t};
    size_t cells = (size_t)t->shape.chunks * (size_t)t->shape.rounds * TIMETABLE_VERB_COUNT;
    TRY(timetable_validate(env, &t->shape));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "timetable", cells, sizeof(int64_t), &c.place));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "timetable", (size_t)t->shape.pp, sizeof(int64_t),
                                 &c.at));
    st = check_lists(&c);
undo:
    mem_free(env, c.place);
    mem_free(env, c.at);
    return st;
}
