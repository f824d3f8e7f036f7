/* plan_step -- simulates a step of one rank: its real store and engine run on a dry device, and a
 * watcher of the engine's scopes reads the clocks. */
#include "plan/plan_impl.h"

#include <string.h>

/* In the second step all is as in later ones; with far state in the third, since the first update
 * finds nothing fetched ahead. Rounds: enough for every PP stage to alternate forward and backward
 * passes for a while, and for far state to pass behind them. */
enum { STEPS = 2, STEPS_FAR = 3, ROUNDS = 4, ROUNDS_FAR = 16 };

static bool has_far_state(const struct plan_request *request)
{
    const struct zero_offload *offload = &request->zero.offload;
    return offload->optimizer != FAR_NONE || offload->params != FAR_NONE;
}

/* --- rounds --------------------------------------------------------------------------------- */

/* The simulated round that stands for a round of the step. */
static int stand_in(const struct plan_step *s, int round)
{
    int half = s->simulated / 2, from_end = s->rounds - round;
    if (round < half || s->simulated == s->rounds)
        return round;
    return from_end <= s->simulated - half ? s->simulated - from_end : half;
}

static struct plan_pass *pass_at(const struct plan_step *s, int verb, int chunk, int round)
{
    return &s->passes[((int64_t)verb * s->chunks + chunk) * s->simulated + round];
}

const struct plan_pass *plan_step_pass(const struct plan_step *s, int verb, int chunk, int round)
{
    return pass_at(s, verb, chunk, stand_in(s, round));
}

/* --- watching a step ------------------------------------------------------------------------ */

struct watcher {
    const struct plan_parts *parts;
    struct plan_step *step;
    struct plan_account last;     /* at the latest point */
    struct plan_account *current; /* receives what is spent until the next point */
    double begin;                 /* of the current pass */
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

/* Add what was spent since the last point to the current account, and make `next` the current one.
 */
static void turn(struct watcher *w, struct plan_account *next)
{
    struct plan_account now = read_account(w->parts);
    add(w->current, &now, 1);
    add(w->current, &w->last, -1);
    w->last = now;
    w->current = next;
}

static void watch(void *user, const struct scope *scope, bool begins)
{
    struct watcher *w = user;
    if (scope->kind == SCOPE_JUDGE)
        turn(w, begins ? &w->step->judge : &w->step->update);
    if (scope->kind != SCOPE_ACTION)
        return;
    const struct timetable_action *a = scope->action;
    struct plan_pass *pass = pass_at(w->step, a->verb, a->chunk, a->round);
    if (begins) {
        turn(w, &pass->until_next);
        w->begin = w->last.clock;
    } else {
        pass->seconds = stream_clock(w->parts->stream) - w->begin;
    }
}

static enum status run_steps(const struct plan_parts *parts, int steps, int loop_votes,
                             struct plan_step *s)
{
    struct engine_result result;
    int64_t sum;
    struct watcher watcher = {.parts = parts, .step = s};
    engine_scopes(parts->engine)->watch = watch;
    engine_scopes(parts->engine)->user = &watcher;
    for (int t = 1; t <= steps; t++) {
        memset(s->passes, 0, (size_t)(PLAN_VERBS * s->chunks * s->simulated) * sizeof *s->passes);
        s->before = s->judge = s->update = (struct plan_account){0};
        watcher.last = read_account(parts);
        watcher.current = &s->before;
        TRY(engine_step(parts->engine, t, 0.0, &result));
        for (int i = 0; i < loop_votes; i++)
            TRY(engine_vote(parts->engine, 0, &sum));
        turn(&watcher, NULL);
    }
    return STATUS_OK;
}

/* --- one rank ------------------------------------------------------------------------------- */

enum status plan_step_simulate(struct env *env, const struct plan_request *request,
                               const struct plan_clock *clock, int rank, int chunks, int rounds,
                               int workers, struct plan_step *step)
{
    bool far = has_far_state(request);
    int enough = plan_pp_stages(request) + (far ? ROUNDS_FAR : ROUNDS);
    int simulated = rounds < enough ? rounds : enough;
    struct env own;
    struct plan_parts parts = {0};
    struct plan_request shorter = *request;
    shorter.engine.micro_batches -= (int64_t)(rounds - simulated) * workers;
    shorter.decode_tokens = 0;
    *step = (struct plan_step){.simulated = simulated, .rounds = rounds, .chunks = chunks};
    TRY(mem_alloc_array(env, MEM_OTHER, "passes", (size_t)(PLAN_VERBS * chunks * simulated),
                        sizeof *step->passes, &step->passes));
    TRY(plan_account_open(env, request->threads, &own));
    enum status st = plan_parts_build(&own, &shorter, rank, clock, &parts);
    if (st == STATUS_OK)
        st = run_steps(&parts, far ? STEPS_FAR : STEPS, request->loop_votes, step);
    plan_parts_free(&parts);
    mem_destroy(own.mem);
    return st;
}

void plan_step_free(struct env *env, struct plan_step *step)
{
    mem_free(env, step->passes);
    *step = (struct plan_step){0};
}

struct plan_account plan_step_sum(const struct plan_step *s)
{
    struct plan_account sum = s->before;
    add(&sum, &s->judge, 1);
    add(&sum, &s->update, 1);
    for (int verb = 0; verb < PLAN_VERBS; verb++)
        for (int chunk = 0; chunk < s->chunks; chunk++)
            for (int round = 0; round < s->rounds; round++)
                add(&sum, &plan_step_pass(s, verb, chunk, round)->until_next, 1);
    return sum;
}
