/* ops_tune -- times candidates in rounds and compares their medians. */
#include "ops/ops_tune.h"
#include <math.h>
#include <stdlib.h>
#include "base/status.h"

struct way {
    bool works;
    bool timed; /* still a candidate */
    int calls;  /* in a round */
    double seconds[TUNE_ROUNDS];
    double median; /* seconds of a call */
};

static void fail(struct way *way)
{
    way->works = way->timed = false;
    way->median = -1;
}

/* A first estimate. The first call may load code, so it is not timed. */
static void estimate(struct way *way, int number, tune_time_fn *time, void *user)
{
    enum { FEW = 2, MANY = 1000 };
    double warm = time(user, number, 1);
    double seconds = warm < 0 ? warm : time(user, number, FEW) / FEW;
    *way = (struct way){.works = true, .timed = true, .median = seconds};
    if (seconds < 0) {
        fail(way);
        return;
    }
    double calls = seconds > 0 ? ceil(TUNE_SPAN / seconds) : MANY;
    way->calls = calls < 1 ? 1 : calls > MANY ? MANY : (int)calls;
}

/* Every other round runs in reverse order, so that a rising or falling clock favours no way: the
 * median is the mean of the two middle rounds, one of each direction. */
static void time_round(struct way *ways, int count, int round, tune_time_fn *time, void *user)
{
    for (int k = 0; k < count; k++) {
        int i = round % 2 == 0 ? k : count - 1 - k;
        if (!ways[i].timed)
            continue;
        double seconds = time(user, i, ways[i].calls);
        if (seconds < 0)
            fail(&ways[i]);
        else
            ways[i].seconds[round] = seconds / ways[i].calls;
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int choose(const struct way *ways, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (ways[i].timed && (!ways[best].timed || ways[i].median < ways[best].median))
            best = i;
    bool gains = !ways[0].works || ways[best].median < (1 - TUNE_GAIN) * ways[0].median;
    return gains ? best : 0;
}

struct tuned ops_tune(int count, tune_time_fn *time, tune_same_fn *same, void *user)
{
    _Static_assert(TUNE_ROUNDS % 2 == 0, "equal numbers of rounds in both directions");
    struct way ways[TUNE_WAYS];
    CHECK(0 < count && count <= TUNE_WAYS);
    for (int i = 0; i < count; i++)
        estimate(&ways[i], i, time, user);
    for (int i = 1; same && i < count; i++)
        if (ways[i].works && !(ways[0].works && same(user, i)))
            fail(&ways[i]);

    /* Exclude ways that are clearly slow. The first stays: the others are compared with it. */
    double fastest = INFINITY;
    int left = 0, rivals = 0;
    for (int i = 0; i < count; i++) {
        left += ways[i].works;
        if (ways[i].works && ways[i].median < fastest)
            fastest = ways[i].median;
    }
    for (int i = 1; i < count; i++) {
        ways[i].timed = ways[i].works && ways[i].median <= TUNE_HOPELESS * fastest;
        rivals += ways[i].timed;
    }
    if (rivals == 0)
        return (struct tuned){0, left, ways[0].median, ways[0].median};

    for (int round = 0; round < TUNE_ROUNDS; round++)
        time_round(ways, count, round, time, user);
    for (int i = 0; i < count; i++) {
        double *s = ways[i].seconds;
        if (!ways[i].timed)
            continue;
        qsort(s, TUNE_ROUNDS, sizeof *s, compare);
        ways[i].median = (s[TUNE_ROUNDS / 2 - 1] + s[TUNE_ROUNDS / 2]) / 2;
    }
    int best = choose(ways, count);
    return (struct tuned){best, left, ways[0].median, ways[best].median};
}

double ops_tune_busiest(int64_t m, int64_t n, int64_t tile_m, int64_t tile_n, int parts,
                        int processors)
{
    int64_t tiles = (m + tile_m - 1) / tile_m * ((n + tile_n - 1) / tile_n) * parts;
    int64_t waves = (tiles + processors - 1) / processors;
    return (double)(waves * tile_m * tile_n) / parts;
}
