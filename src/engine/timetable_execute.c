/* timetable_execute -- carries out the lists one action at a time, with sends that block until they
 * are received. If this ends, any other way of carrying them out ends, too. */
#include "engine/timetable.h"
#include "engine/timetable_impl.h"

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
static bool step(struct execution *e, int p)
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
        while (at[p] < t->first[p + 1] && step(&e, p))
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
