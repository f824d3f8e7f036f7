/* timetable_execute -- carries out lists one action after another, with sends that wait until they
 * are received: the least patient way there is. */
#include "engine/timetable.h"
#include "engine/timetable_impl.h"

struct walk {
    const struct timetable *t;
    timetable_visit_fn *visit;
    void *user;
    int64_t *at; /* (pp) */
    int *woken;  /* (pp) ranks that may be able to go on */
    int woken_count;
    bool *is_woken; /* (pp) */
};

static void wake(struct walk *w, int p)
{
    if (!w->is_woken[p])
        w->woken[w->woken_count++] = p;
    w->is_woken[p] = true;
}

/* Whether rank q is at the other end of rank p's action `verb`. */
static bool meets(const struct walk *w, int p, int verb, int q)
{
    if (w->at[q] == w->t->first[q + 1])
        return false;
    int other = w->t->actions[w->at[q]].verb;
    return timetable_is_message(other) && timetable_is_send(other) != timetable_is_send(verb) &&
           timetable_peer(&w->t->shape, q, other) == p;
}

/* One action of rank p; false: it waits. */
static bool step(struct walk *w, int p)
{
    int64_t i = w->at[p];
    int verb = w->t->actions[i].verb;
    if (!timetable_is_message(verb)) {
        if (w->visit)
            w->visit(w->user, p, i, -1, -1);
        w->at[p]++;
        return true;
    }
    int q = timetable_peer(&w->t->shape, p, verb);
    if (!meets(w, p, verb, q))
        return false;
    if (w->visit && timetable_is_send(verb))
        w->visit(w->user, p, i, q, w->at[q]);
    else if (w->visit)
        w->visit(w->user, q, w->at[q], p, i);
    w->at[p]++;
    w->at[q]++;
    wake(w, q);
    return true;
}

enum status timetable_execute(struct env *env, const struct timetable *t, timetable_visit_fn *visit,
                              void *user, int64_t *at)
{
    enum status st;
    size_t pp = (size_t)t->shape.pp;
    struct walk w = {.t = t, .visit = visit, .user = user, .at = at};
    TRY(mem_alloc_array(env, MEM_OTHER, "timetable", pp, sizeof(int), &w.woken));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "timetable", pp, sizeof(bool), &w.is_woken));
    for (int p = 0; p < t->shape.pp; p++) {
        at[p] = t->first[p];
        wake(&w, p);
    }
    while (w.woken_count > 0) {
        int p = w.woken[--w.woken_count];
        w.is_woken[p] = false;
        while (at[p] < t->first[p + 1] && step(&w, p))
            ;
    }
undo:
    mem_free(env, w.woken);
    mem_free(env, w.is_woken);
    return st;
}

bool timetable_executed(const struct timetable *t, const int64_t *at)
{
    for (int p = 0; p < t->shape.pp; p++)
        if (at[p] != t->first[p + 1])
            return false;
    return true;
}
