/* pp_cut -- cuts the units of a model into the stages of a pipeline.
 *
 * The slowest stage sets the pace of all. Among all cuts that fit the memory, pp_cut takes the one
 * whose slowest stage is fastest; among these the most even one (the least sum of squares); among
 * these the one with the fewest units in the first stages, which have the most rounds in flight.
 * Costs are integers (operations, nanoseconds), so every rank and every machine finds the same cut.
 *
 * Dynamic programming over (stage, first unit), from the last stage to the first.
 * One recursion answers three questions: the smallest possible largest cost; with that as a limit,
 * the least sum of squares; and, when nothing fits, the smallest possible largest memory. Values
 * are doubles that hold integers exactly; squares are rounded, in the same way everywhere.
 *
 * Without a memory limit some cut has no stage that costs more than the mean plus the largest unit,
 * so a stage of the best cut can begin only at a few units. Only these are examined, and thousands
 * of units take no time.
 */
#include <math.h>

#include "engine/spread.h"

enum question { LARGEST_COST, SUM_OF_SQUARES, LARGEST_BYTES };

struct cutter {
    const struct pp_cut_task *task;
    double *cost, *bytes, *round_bytes; /* (units + 1) prefix sums */
    double *value; /* (stages + 1, units + 1) best value from (stage, first unit) on */
    int *next;     /* (stages, units + 1) first unit of the next stage */
    double most_cost;
    double ceiling; /* no stage of the best cut costs more; `exact` if unknown */
};

static double pp_stage_bytes(const struct cutter *c, int pp_stage, int from, int to)
{
    return c->bytes[to] - c->bytes[from] +
           c->task->in_flight[pp_stage] * (c->round_bytes[to] - c->round_bytes[from]);
}

/* The value of a stage with these units; INFINITY: not allowed. */
static double weigh(const struct cutter *c, enum question question, int pp_stage, int from, int to)
{
    double cost = c->cost[to] - c->cost[from];
    bool limited = c->task->most_bytes > 0;
    if (question == LARGEST_BYTES)
        return pp_stage_bytes(c, pp_stage, from, to);
    if (limited && pp_stage_bytes(c, pp_stage, from, to) > (double)c->task->most_bytes)
        return INFINITY;
    if (question == LARGEST_COST)
        return cost;
    return cost <= c->most_cost ? cost * cost : INFINITY;
}

/* The best value from stage `s`, first unit `from` on. Among equal ones the shortest stage wins. */
static void solve_cell(struct cutter *c, enum question question, int s, int from)
{
    int width = c->task->units + 1;
    double best = INFINITY;
    int next = from;
    for (int to = from + 1; to < width; to++) {
        double rest = c->value[(s + 1) * width + to], mine;
        if (rest == INFINITY)
            continue;
        mine = weigh(c, question, s, from, to);
        if (mine >= best) /* longer stages cost at least as much */
            break;
        mine = question == SUM_OF_SQUARES ? mine + rest : fmax(mine, rest);
        if (mine < best) {
            best = mine;
            next = to;
        }
    }
    c->value[s * width + from] = best;
    c->next[s * width + from] = next;
}

static double solve(struct cutter *c, enum question question)
{
    int pp_stages = c->task->pp_stages, width = c->task->units + 1;
    for (int from = 0; from < width; from++)
        c->value[pp_stages * width + from] = from == width - 1 ? 0.0 : INFINITY;
    for (int s = pp_stages - 1; s >= 0; s--)
        for (int from = 0; from < width; from++) {
            /* whether stage s of the best cut can begin at unit `from` */
            if (c->cost[from] <= s * c->ceiling &&
                c->cost[width - 1] - c->cost[from] <= (pp_stages - s) * c->ceiling)
                solve_cell(c, question, s, from);
            else
                c->value[s * width + from] = INFINITY;
        }
    return c->value[0];
}

static const double exact = 9007199254740992.0; /* 2^53: doubles hold integers up to here */

static void add_up(struct cutter *c)
{
    bool limited = c->task->most_bytes > 0;
    double sum = 0.0, largest = 1.0;
    int64_t size = 1; /* the unit of costs, so that their sum is exact: 1, unless they are huge */
    for (int u = 0; u < c->task->units; u++)
        sum += (double)c->task->cost[u];
    for (; sum >= exact; sum /= 2)
        size *= 2;
    for (int u = 0; u < c->task->units; u++) {
        CHECK(c->task->cost[u] >= 0);
        c->cost[u + 1] = c->cost[u] + (double)(c->task->cost[u] / size);
        largest = fmax(largest, c->cost[u + 1] - c->cost[u]);
        c->bytes[u + 1] = c->bytes[u] + (limited ? (double)c->task->bytes[u] : 0.0);
        c->round_bytes[u + 1] =
            c->round_bytes[u] + (limited ? (double)c->task->round_bytes[u] : 0.0);
    }
    CHECK(c->cost[c->task->units] < exact && c->bytes[c->task->units] < exact);
    /* Twice the largest unit, so that rounding cannot push the bound below its true value. */
    c->ceiling = limited ? exact : c->cost[c->task->units] / c->task->pp_stages + 2.0 * largest;
}

static enum status cut(struct env *env, struct cutter *c, int *first)
{
    const struct pp_cut_task *task = c->task;
    char least[32], most[32];
    c->most_cost = solve(c, LARGEST_COST);
    if (c->most_cost == INFINITY)
        return FAIL(env, FIT,
                    "no cut of %d units into %d stages fits %s per stage; the smallest one "
                    "needs %s",
                    task->units, task->pp_stages, text_human_bytes(most, (double)task->most_bytes),
                    text_human_bytes(least, solve(c, LARGEST_BYTES)));
    solve(c, SUM_OF_SQUARES);
    first[0] = 0;
    for (int s = 0; s < task->pp_stages; s++)
        first[s + 1] = c->next[s * (task->units + 1) + first[s]];
    return STATUS_OK;
}

enum status pp_cut(struct env *env, const struct pp_cut_task *task, int *first)
{
    enum status st;
    struct cutter c = {.task = task};
    CHECK_LT(0, task->pp_stages);
    if (task->units < task->pp_stages)
        return FAIL(env, CONFIG,
                    "%d units cannot be cut into %d pipeline stages (parallel.pp x chunks); use at "
                    "most %d",
                    task->units, task->pp_stages, task->units);
    size_t width = (size_t)task->units + 1, cells = ((size_t)task->pp_stages + 1) * width;
    TRY(mem_alloc_array(env, MEM_OTHER, "stage cut", 3 * width, sizeof(double), &c.cost));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "stage cut", cells, sizeof(double), &c.value));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "stage cut", cells, sizeof(int), &c.next));
    c.bytes = c.cost + width;
    c.round_bytes = c.bytes + width;
    add_up(&c);
    st = cut(env, &c, first);
undo:
    mem_free(env, c.cost);
    mem_free(env, c.value);
    mem_free(env, c.next);
    return st;
}
