/* bits_runs -- which runs tests/bits/run-bits makes: prints one a line, as words KEY=VALUE.
 *
 *     bits_runs pairs [SEED]     every pair of values that can occur in one run occurs in some run
 *     bits_runs product [SEED]   stages x ranks x back ends x precisions, the rest drawn
 *     bits_runs pipelines [SEED] pipelines of 2 to 4 stages x schedules x ZeRO stages x 1 to 3 copies x
 *                                models, the rest drawn
 *
 * All combinations are few enough to look at each. `pairs` takes the one with the most pairs that
 * no run has yet, until there are none: among equals the seed decides, by where the walk over the
 * combinations begins. A pair with zero.prefetch counts where something is gathered ahead, in stage
 * 3. What a configuration may not contain is left out, by the rules of zero_create; in a pipeline they
 * hold for the ranks with one stage. `ranks` are those of all stages together.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum factor {
    MODEL,
    PRECISION,
    STAGE,
    RANKS,
    BACKEND,
    PREFETCH,
    THREADS,
    RECOMPUTE,
    SERVERS,
    GROUP,
    PP,
    SCHEDULE,
    FACTORS
};
enum { MOST_VALUES = 11, MOST_RUNS = 1000, STRIDE = 7919 }; /* a prime: the walk meets all */

static const struct {
    const char *key;
    const char *values[MOST_VALUES];
} factors[FACTORS] = {
    [MODEL] = {"model", {"gpt2", "llama"}},
    [PRECISION] = {"precision", {"fp32", "bf16"}},
    [STAGE] = {"stage", {"0", "1", "2", "3"}},
    [RANKS] = {"ranks", {"1", "2", "3", "4", "5", "6", "7", "8", "9", "12", "16"}},
    [BACKEND] = {"backend", {"threads", "mpi"}},
    [PREFETCH] = {"prefetch", {"0", "1", "3"}},
    [THREADS] = {"threads", {"1", "2"}},
    [RECOMPUTE] = {"recompute", {"none", "selective", "full"}},
    [SERVERS] = {"servers", {"0", "1", "2"}},
    [GROUP] = {"group", {"0", "1", "2", "3", "4", "8"}},
    [PP] = {"pp", {"1", "2", "3", "4"}},
    [SCHEDULE] = {"schedule", {"1f1b", "gpipe", "interleaved"}},
};

struct run {
    int value[FACTORS]; /* indices */
};

/* --- combinations --------------------------------------------------------------------------- */

/* What is asked a million times: how many values a factor has, and the numbers they are. */
static struct {
    int count, numbers[MOST_VALUES];
} known[FACTORS];

static void look_at_factors(void)
{
    for (int f = 0; f < FACTORS; f++)
        for (int v = 0; v < MOST_VALUES && factors[f].values[v]; v++)
            known[f].numbers[known[f].count++] = atoi(factors[f].values[v]);
}

static int value_count(int f)
{
    return known[f].count;
}

static int64_t combination_count(void)
{
    int64_t count = 1;
    for (int f = 0; f < FACTORS; f++)
        count *= value_count(f);
    return count;
}

static struct run combination(int64_t index)
{
    struct run run;
    for (int f = 0; f < FACTORS; f++) {
        run.value[f] = (int)(index % value_count(f));
        index /= value_count(f);
    }
    return run;
}

static int number(const struct run *run, enum factor f)
{
    return known[f].numbers[run->value[f]];
}

/* Two chunks a stage of the six units of the models; without a pipeline there is one way. */
static bool has_schedule(const struct run *run, int pp)
{
    bool interleaved = strcmp(factors[SCHEDULE].values[run->value[SCHEDULE]], "interleaved") == 0;
    return pp == 1 ? run->value[SCHEDULE] == 0 : !interleaved || 2 * pp <= 6;
}

static bool is_valid(const struct run *run)
{
    int stage = number(run, STAGE), pp = number(run, PP), ranks = number(run, RANKS) / pp;
    int servers = number(run, SERVERS), group = number(run, GROUP);
    if (number(run, RANKS) % pp != 0 || !has_schedule(run, pp))
        return false;
    if (servers > 0 && (stage == 0 || group > 0 || servers >= ranks))
        return false;
    return group == 0 || (stage > 0 && ranks % group == 0);
}

static void print_run(const struct run *run)
{
    for (int f = 0; f < FACTORS; f++)
        printf("%s%s=%s", f ? " " : "", factors[f].key, factors[f].values[run->value[f]]);
    putchar('\n');
}

/* --- pairs ---------------------------------------------------------------------------------- */

/* The pairs of values that some run has. */
struct pairs {
    bool has[FACTORS][MOST_VALUES][FACTORS][MOST_VALUES];
};

static bool counts(const struct run *run, int f, int g)
{
    bool ahead = f == PREFETCH || g == PREFETCH;
    return !ahead || f == STAGE || g == STAGE || number(run, STAGE) == 3;
}

/* How many pairs of `run` are new; with `add` they are no more. */
static int new_pairs(struct pairs *pairs, const struct run *run, bool add)
{
    int fresh = 0;
    for (int f = 0; f < FACTORS; f++)
        for (int g = f + 1; g < FACTORS; g++) {
            bool *has = &pairs->has[f][run->value[f]][g][run->value[g]];
            if (*has || !counts(run, f, g))
                continue;
            fresh++;
            *has = *has || add;
        }
    return fresh;
}

static int choose_pairs(uint64_t seed, struct run *runs)
{
    static struct pairs pairs;
    int64_t total = combination_count();
    for (int count = 0; count < MOST_RUNS; count++) {
        int most = 0;
        for (int64_t i = 0; i < total; i++) {
            struct run run =
                combination((int64_t)((seed * 31 + (uint64_t)i * STRIDE) % (uint64_t)total));
            int fresh = is_valid(&run) ? new_pairs(&pairs, &run, false) : 0;
            if (fresh <= most)
                continue;
            most = fresh;
            runs[count] = run;
        }
        if (most == 0)
            return count;
        new_pairs(&pairs, &runs[count], true);
    }
    return MOST_RUNS;
}

/* Counted again from the list itself; false: a pair that could occur does not. */
static bool check_pairs(const struct run *runs, int count)
{
    static struct pairs possible, found;
    int possible_count = 0, found_count = 0;
    for (int64_t i = 0; i < combination_count(); i++) {
        struct run run = combination(i);
        possible_count += is_valid(&run) ? new_pairs(&possible, &run, true) : 0;
    }
    for (int i = 0; i < count; i++)
        found_count += is_valid(&runs[i]) ? new_pairs(&found, &runs[i], true) : 0;
    fprintf(stderr, "%d runs have %d of %d pairs of values\n", count, found_count, possible_count);
    return found_count == possible_count;
}

/* --- the product ---------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int choose_product(uint64_t seed, struct run *runs)
{
    static const enum factor fixed[] = {PRECISION, BACKEND, RANKS, STAGE};
    int count = 0, total = 1;
    for (int k = 0; k < 4; k++)
        total *= value_count(fixed[k]);
    while (count < total) {
        struct run run = combination((int64_t)(next_random(&seed) % (uint64_t)combination_count()));
        for (int k = 0, rest = count; k < 4; rest /= value_count(fixed[k++]))
            run.value[fixed[k]] = rest % value_count(fixed[k]);
        if (is_valid(&run))
            runs[count++] = run;
    }
    return count;
}

/* The value of a factor that is this number. */
static int value_of(enum factor f, int wanted)
{
    for (int v = 0; v < value_count(f); v++)
        if (known[f].numbers[v] == wanted)
            return v;
    abort();
}

static bool draw_pipeline(uint64_t *seed, struct run wanted, int dp, struct run *run)
{
    wanted.value[RANKS] = value_of(RANKS, number(&wanted, PP) * dp);
    if (!has_schedule(&wanted, number(&wanted, PP)))
        return false;
    do {
        *run = combination((int64_t)(next_random(seed) % (uint64_t)combination_count()));
        run->value[PP] = wanted.value[PP];
        run->value[SCHEDULE] = wanted.value[SCHEDULE];
        run->value[STAGE] = wanted.value[STAGE];
        run->value[RANKS] = wanted.value[RANKS];
        run->value[MODEL] = wanted.value[MODEL];
    } while (!is_valid(run));
    return true;
}

static int choose_pipelines(uint64_t seed, struct run *runs)
{
    int count = 0;
    struct run run = {0};
    for (run.value[PP] = 1; run.value[PP] < value_count(PP); run.value[PP]++)
        for (run.value[SCHEDULE] = 0; run.value[SCHEDULE] < value_count(SCHEDULE);
             run.value[SCHEDULE]++)
            for (run.value[STAGE] = 0; run.value[STAGE] < value_count(STAGE); run.value[STAGE]++)
                for (int dp = 1; dp <= 3; dp++)
                    for (run.value[MODEL] = 0; run.value[MODEL] < 2; run.value[MODEL]++)
                        count += draw_pipeline(&seed, run, dp, &runs[count]);
    return count;
}

int main(int argc, char **argv)
{
    static struct run runs[MOST_RUNS];
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    look_at_factors();
    const char *mode = argc > 1 ? argv[1] : "";
    bool pairs = strcmp(mode, "pairs") == 0, pipelines = strcmp(mode, "pipelines") == 0;
    if (!pairs && !pipelines && strcmp(mode, "product") != 0) {
        fprintf(stderr, "usage: bits_runs pairs|product|pipelines [SEED]\n");
        return 2;
    }
    int count = pairs       ? choose_pairs(seed, runs)
                : pipelines ? choose_pipelines(seed, runs)
                            : choose_product(seed, runs);
    for (int i = 0; i < count; i++)
        print_run(&runs[i]);
    return pairs && !check_pairs(runs, count);
}
