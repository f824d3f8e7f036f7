/* plan_walk -- see the header: the engine is built on nothing and watched as it steps. */
#include "plan/plan_walk.h"

#include <string.h>

enum { STEPS = 2 };

/* --- rounds --------------------------------------------------------------------------------- */

/* The request of which so few rounds are walked that the rest is known from them. */
static struct plan_request shorten(struct plan_request request, int workers, int rounds, int walked)
{
    request.engine.micro_batches -= (int64_t)(rounds - walked) * workers;
    request.decode_tokens = 0;
    return request;
}

/* Enough for every stage to go forward and back by turns for a while. */
static int walked_rounds(const struct plan_request *request, int rounds)
{
    int enough = plan_pp_stages(request) + 4;
    return rounds < enough ? rounds : enough;
}

/* The walked round that a round is like. */
static int like_round(const struct plan_walk *w, int round)
{
    int half = w->walked / 2, from_end = w->rounds - round;
    if (round < half || w->walked == w->rounds)
        return round;
    return from_end <= w->walked - half ? w->walked - from_end : half;
}

static struct plan_pass *pass_at(const struct plan_walk *w, int verb, int chunk, int round)
{
    return &w->passes[((int64_t)verb * w->chunks + chunk) * w->walked + round];
}

const struct plan_pass *plan_walk_pass(const struct plan_walk *w, int verb, int chunk, int round)
{
    return pass_at(w, verb, chunk, like_round(w, round));
}

/* --- watching a step ------------------------------------------------------------------------ */

struct watcher {
    const struct plan_parts *parts;
    struct plan_walk *walk;
    struct plan_account last;    /* at the newest point */
    struct plan_account *so_far; /* what happens now belongs to */
    double begin;                /* of the pass under way */
};

static struct plan_account read_account(const struct plan_parts *p)
{
    struct plan_account a = {.clock = stream_clock(p->stream),
                             .spent = stream_spent(p->stream),
                             .traffic = engine_traffic(p->engine)};
    a.traffic.waited -= a.traffic.stalled;
    return a;
}

static void add(struct plan_account *sum, const struct plan_account *more, int sign)
{
    sum->clock += sign * more->clock;
    sum->spent += sign * more->spent;
    traffic_add(&sum->traffic, &more->traffic, sign);
}

/* What has happened since the last point is put where it belongs; what follows belongs to `next`. */
static void turn(struct watcher *w, struct plan_account *next)
{
    struct plan_account now = read_account(w->parts);
    add(w->so_far, &now, 1);
    add(w->so_far, &w->last, -1);
    w->last = now;
    w->so_far = next;
}

static void watch(void *user, enum engine_point point, const struct timetable_action *pass)
{
    struct watcher *w = user;
    struct plan_pass *time = pass ? pass_at(w->walk, pass->verb, pass->chunk, pass->round) : NULL;
    switch (point) {
    case ENGINE_PASS_BEGIN:
        turn(w, &time->share);
        w->begin = w->last.clock;
        break;
    case ENGINE_PASS_END: time->seconds = stream_clock(w->parts->stream) - w->begin; break;
    case ENGINE_PASSES_DONE: turn(w, &w->walk->judge); break;
    case ENGINE_JUDGED: turn(w, &w->walk->update); break;
    }
}

static void clear(struct plan_walk *w)
{
    memset(w->passes, 0, (size_t)(PLAN_VERBS * w->chunks * w->walked) * sizeof *w->passes);
    w->before = w->judge = w->update = (struct plan_account){0};
}

static enum status walk_steps(const struct plan_parts *parts, int loop_votes, struct plan_walk *w)
{
    struct engine_result result;
    int64_t sum;
    struct watcher watcher = {.parts = parts, .walk = w};
    engine_watch(parts->engine, watch, &watcher);
    for (int t = 1; t <= STEPS; t++) {
        clear(w);
        watcher.last = read_account(parts);
        watcher.so_far = &w->before;
        TRY(engine_step(parts->engine, t, 0.0, &result));
        for (int i = 0; i < loop_votes; i++)
            TRY(engine_vote(parts->engine, 0, &sum));
        turn(&watcher, NULL);
    }
    return STATUS_OK;
}

/* --- one rank ------------------------------------------------------------------------------- */

enum status plan_walk(struct env *env, const struct plan_request *request,
                      const struct plan_clock *clock, int rank, int chunks, int rounds, int workers,
                      struct plan_walk *walk)
{
    struct env own;
    struct plan_parts parts = {0};
    *walk = (struct plan_walk){
        .walked = walked_rounds(request, rounds), .rounds = rounds, .chunks = chunks};
    struct plan_request some = shorten(*request, workers, rounds, walk->walked);
    TRY(mem_alloc_array(env, MEM_OTHER, "passes", (size_t)(PLAN_VERBS * chunks * walk->walked),
                        sizeof *walk->passes, &walk->passes));
    TRY(plan_account_open(env, request->threads, &own));
    enum status st = plan_parts_build(&own, &some, rank, clock, &parts);
    if (st == STATUS_OK)
        st = walk_steps(&parts, request->loop_votes, walk);
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

void plan_walk_free(struct env *env, struct plan_walk *walk)
{
    mem_free(env, walk->passes);
    *walk = (struct plan_walk){0};
}

struct plan_account plan_walk_sum(const struct plan_walk *w)
{
    struct plan_account sum = w->before;
    add(&sum, &w->judge, 1);
    add(&sum, &w->update, 1);
    for (int verb = 0; verb < PLAN_VERBS; verb++)
        for (int chunk = 0; chunk < w->chunks; chunk++)
            for (int round = 0; round < w->rounds; round++)
                add(&sum, &plan_walk_pass(w, verb, chunk, round)->share, 1);
    return sum;
}
