/* formula -- see the header. */
#include "plan/formula.h"

#include "zero/partition.h"

const struct state_widths state_fp32 = {4, 4, 8};
const struct state_widths state_mixed = {2, 2, 12};

static bool owns_something(const struct roster *roster)
{
    return roster_share(roster, roster->rank) >= 0;
}

/* The part of something that a rank has. */
static double held(const struct roster *roster, bool cut)
{
    if (roster_is_worker(roster) && !cut)
        return 1.0;
    return owns_something(roster) ? 1.0 / roster_shards(roster) : 0.0;
}

double formula_state(const struct roster *roster, int stage, double parameters,
                     struct state_widths widths)
{
    struct sharding cut = sharding_of(stage);
    bool owns = owns_something(roster); /* servers hold the optimizer state of all */
    double optimizer = owns ? held(roster, cut.optim) : 0.0;
    return parameters * (widths.param * held(roster, cut.params) +
                         widths.grad * held(roster, cut.grads) + widths.optimizer * optimizer);
}

/* An owner's slice goes to every other worker of its copy. */
static double gathered(const struct roster *roster)
{
    int others = roster->workers / roster->copies - (roster_is_worker(roster) ? 1 : 0);
    return owns_something(roster) ? (double)others / roster_shards(roster) : 0.0;
}

/* A worker keeps the slice that is its own. */
static double reduced(const struct roster *roster)
{
    if (!roster_is_worker(roster))
        return 0.0;
    return owns_something(roster) ? 1.0 - 1.0 / roster->owners : 1.0;
}

double formula_sent(const struct roster *roster, int stage, double parameters, int64_t rounds,
                    enum zero_way way)
{
    double gathers = sharding_of(stage).params ? 2.0 * (double)rounds : 1.0;
    switch (way) {
    case ZERO_GATHER: return parameters * gathers * gathered(roster);
    case ZERO_REDUCE: return parameters * (double)rounds * reduced(roster);
    default: return 0.0;
    }
}
