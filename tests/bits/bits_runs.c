/* bits_runs -- the runs that tests/bits/run-bits makes: prints one per line, as words KEY=VALUE.
 *
 *     bits_runs pairs [SEED]     every pair of values that can occur in one run occurs in some run
 *     bits_runs product [SEED]   tp x pp x schedules x ZeRO stages x 1 to 3 copies x recomputation
 *                                x models x tied, as far as there are ranks for it; other values
 *                                are drawn at random
 *     bits_runs ranks [SEED]     ZeRO stages x ranks x back ends x precisions, the others drawn
 *
 * `pairs` repeatedly picks the combination with the most pairs that no run has yet, until there are
 * none. Among equals the seed decides, by where the iteration over the combinations starts. The
 * number of new pairs of a combination never grows, so combinations that had fewer in an earlier
 * count need not be counted again.
 *
 * The placement of state and sums (offload.*) is chosen afterwards, as there would be too many
 * combinations: each run gets the placement with the most new pairs, and runs are repeated with
 * another one until no pair is left. The other lists draw it.
 *
 * A pair with zero.prefetch counts only where pieces are gathered ahead, in stage 3; a pair with
 * parallel.sequence only with tensor parallelism; with offload.share only where state is far, and with
 * offload.window where anything is. Invalid configurations are left out, by the rules
 * of zero_create (Muon needs whole matrices: no tensor parallelism); with pipelines and tensor
 * parallelism these apply to the ranks with the same PP stage and part. SARS has no tensor and no
 * pipeline parallelism. Stochastic rounding depends on the parts of tensors that ranks hold, not of
 * rows: it is left out with parallel.sequence. `ranks` is the number of ranks of the job.
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
    TP,
    SEQUENCE,
    TIED,
    OPTIMIZER,
    SEARCHED, /* the combinations of all factors before it are searched */
    OFFLOAD = SEARCHED,
    GRADS,
    SHARE,
    WINDOW,
    FACTORS
};
enum { MOST_VALUES = 11, MOST_RUNS = 4000, STRIDE = 7919 }; /* prime: visits all combinations */

static const struct {
    const char *key;
    const char *values[MOST_VALUES];
} factors[FACTORS] = {
    [MODEL] = {"model", {"gpt2", "llama", "sars"}},
    [PRECISION] = {"precision", {"fp32", "bf16", "bf16-stochastic"}},
    [STAGE] = {"stage", {"0", "1", "2", "3"}},
    [RANKS] = {"ranks", {"1", "2", "3", "4", "5", "6", "8", "9", "12", "16"}},
    [BACKEND] = {"backend", {"threads", "mpi"}},
    [PREFETCH] = {"prefetch", {"0", "1", "3"}},
    [THREADS] = {"threads", {"1", "2"}},
    [RECOMPUTE] = {"recompute", {"none", "selective", "full"}},
    [SERVERS] = {"servers", {"0", "1", "2"}},
    [GROUP] = {"group", {"0", "1", "2", "3", "4", "8"}},
    [PP] = {"pp", {"1", "2", "3", "4"}},
    [SCHEDULE] = {"schedule", {"1f1b", "gpipe", "interleaved", "zero-bubble"}},
    [TP] = {"tp", {"1", "2"}},
    [SEQUENCE] = {"sequence", {"false", "true"}},
    [TIED] = {"tied", {"no", "yes"}},
    [OPTIMIZER] = {"optimizer", {"adamw", "adamw8bit", "sgd", "muon", "mixed"}},
    [OFFLOAD] = {"offload", {"none", "disk"}}, /* on the CPU, host memory is not far */
    [GRADS] = {"grads", {"none", "disk"}},
    [SHARE] = {"share", {"1", "0.3"}},
    [WINDOW] = {"window", {"0", "300k"}},
};

struct run {
    int value[FACTORS]; /* indices of values */
};

/* --- combinations --------------------------------------------------------------------------- */

/* Looked up a million times: the number of values of a factor, and the values as numbers. */
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
    for (int f = 0; f < SEARCHED; f++)
        count *= value_count(f);
    return count;
}

static struct run combination(int64_t index)
{
    struct run run = {0};
    for (int f = 0; f < SEARCHED; f++) {
        run.value[f] = (int)(index % value_count(f));
        index /= value_count(f);
    }
    return run;
}

static int number(const struct run *run, enum factor f)
{
    return known[f].numbers[run->value[f]];
}

/* Interleaved schedules need two chunks per PP stage, of the six units of the models. Without a
 * pipeline there is only one schedule. */
static bool has_schedule(const struct run *run, int pp)
{
    bool interleaved = strcmp(factors[SCHEDULE].values[run->value[SCHEDULE]], "interleaved") == 0;
    return pp == 1 ? run->value[SCHEDULE] == 0 : !interleaved || 2 * pp <= 6;
}

static bool can_split_model(const struct run *run)
{
    return strcmp(factors[MODEL].values[run->value[MODEL]], "sars") != 0;
}

static bool is_stochastic(const struct run *run)
{
    return strcmp(factors[PRECISION].values[run->value[PRECISION]], "bf16-stochastic") == 0;
}

/* Muon, also that of `mixed`. */
static bool needs_whole_matrices(const struct run *run)
{
    const char *optimizer = factors[OPTIMIZER].values[run->value[OPTIMIZER]];
    return strcmp(optimizer, "muon") == 0 || strcmp(optimizer, "mixed") == 0;
}

static bool is_valid(const struct run *run)
{
    int stage = number(run, STAGE), pp = number(run, PP), over = pp * number(run, TP);
    int servers = number(run, SERVERS), group = number(run, GROUP), all = number(run, RANKS);
    int ranks = all / over;
    if (over > 1 && !can_split_model(run))
        return false;
    if (all % over != 0 || !has_schedule(run, pp))
        return false;
    if (run->value[SEQUENCE] != 0 && (number(run, TP) == 1 || is_stochastic(run)))
        return false;
    if (number(run, TP) > 1 && needs_whole_matrices(run))
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

/* The pairs of values that occur in some run. */
struct pairs {
    bool has[FACTORS][MOST_VALUES][FACTORS][MOST_VALUES];
};

static bool counts(const struct run *run, int f, int g)
{
    bool ahead = f == PREFETCH || g == PREFETCH, rows = f == SEQUENCE || g == SEQUENCE;
    if (rows && number(run, TP) == 1)
        return false;
    bool state = run->value[OFFLOAD] != 0, any = state || run->value[GRADS] != 0;
    if ((!state && (f == SHARE || g == SHARE)) || (!any && (f == WINDOW || g == WINDOW)))
        return false;
    return !ahead || f == STAGE || g == STAGE || number(run, STAGE) == 3;
}

/* Number of new pairs of `run` with a factor from `from` to `end` - 1 and any before it; `add` marks
 * them as present. */
static int new_pairs(struct pairs *pairs, const struct run *run, enum factor from, enum factor end,
                     bool add)
{
    int fresh = 0;
    for (int g = from; g < (int)end; g++)
        for (int f = 0; f < g; f++) {
            bool *has = &pairs->has[f][run->value[f]][g][run->value[g]];
            if (*has || !counts(run, f, g))
                continue;
            fresh++;
            *has = *has || add;
        }
    return fresh;
}

/* A combination that may be a run, and the number of its new pairs when last counted. */
struct candidate {
    int32_t combination, most;
};

static int64_t find_candidates(uint64_t seed, struct candidate **candidates)
{
    int64_t total = combination_count(), count = 0;
    *candidates = malloc((size_t)total * sizeof **candidates);
    if (!*candidates)
        abort();
    for (int64_t i = 0; i < total; i++) {
        int64_t at = (int64_t)((seed * 31 + (uint64_t)i * STRIDE) % (uint64_t)total);
        struct run run = combination(at);
        if (is_valid(&run))
            (*candidates)[count++] = (struct candidate){(int32_t)at, INT32_MAX};
    }
    return count;
}

static int choose_pairs(uint64_t seed, struct run *runs)
{
    static struct pairs pairs;
    struct candidate *candidates;
    int64_t total = find_candidates(seed, &candidates);
    int count = 0, most = 1;
    for (; count < MOST_RUNS && most > 0; count += most > 0) {
        most = 0;
        for (int64_t i = 0; i < total; i++) {
            struct candidate *c = &candidates[i];
            if (c->most <= most)
                continue;
            struct run run = combination(c->combination);
            c->most = new_pairs(&pairs, &run, MODEL, SEARCHED, false);
            if (c->most <= most)
                continue;
            most = c->most;
            runs[count] = run;
        }
        if (most > 0)
            new_pairs(&pairs, &runs[count], MODEL, SEARCHED, true);
    }
    free(candidates);
    return count;
}

static int placement_count(void)
{
    int count = 1;
    for (int f = OFFLOAD; f < FACTORS; f++)
        count *= value_count(f);
    return count;
}

static struct run with_placement(const struct run *run, int index)
{
    struct run placed = *run;
    for (int f = OFFLOAD; f < FACTORS; f++) {
        placed.value[f] = index % value_count(f);
        index /= value_count(f);
    }
    return placed;
}

/* The run with the placement that has the most new pairs; returns their number. */
static int place(struct pairs *pairs, const struct run *run, struct run *best)
{
    int most = 0;
    *best = *run;
    for (int k = 0; k < placement_count(); k++) {
        struct run placed = with_placement(run, k);
        int fresh = new_pairs(pairs, &placed, OFFLOAD, FACTORS, false);
        if (fresh <= most)
            continue;
        most = fresh;
        *best = placed;
    }
    new_pairs(pairs, best, OFFLOAD, FACTORS, true);
    return most;
}

/* Returns the new number of runs. */
static int choose_placements(struct run *runs, int count)
{
    static struct pairs pairs;
    int all = count;
    for (int i = 0; i < count; i++)
        if (place(&pairs, &runs[i], &runs[i]) == 0)
            runs[i] = with_placement(&runs[i], i % placement_count());
    for (int i = 0; i < count; i++)
        while (all < MOST_RUNS && place(&pairs, &runs[i], &runs[all]) > 0)
            all++;
    return all;
}

/* Count again from the list of runs; false: a possible pair is missing. */
static bool check_pairs(const struct run *runs, int count)
{
    static struct pairs possible, found;
    int possible_count = 0, found_count = 0;
    for (int64_t i = 0; i < combination_count(); i++) {
        struct run run = combination(i);
        possible_count += is_valid(&run) ? new_pairs(&possible, &run, MODEL, SEARCHED, true) : 0;
    }
    for (int i = 0; i < count; i++)
        found_count += is_valid(&runs[i]) ? new_pairs(&found, &runs[i], MODEL, FACTORS, true) : 0;
    for (int i = 0; i < count; i++) /* every run may have every placement */
        for (int k = 0; k < placement_count(); k++) {
            struct run run = with_placement(&runs[i], k);
            possible_count += new_pairs(&possible, &run, OFFLOAD, FACTORS, true);
        }
    fprintf(stderr, "%d runs have %d of %d pairs of values\n", count, found_count, possible_count);
    return found_count == possible_count;
}

/* --- products ------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A run with the wanted values of the fixed factors, the others drawn at random; false: there is
 * none. */
static bool draw(uint64_t *seed, const struct run *wanted, const enum factor *fixed, int count,
                 struct run *run)
{
    for (int attempt = 0; attempt < 100000; attempt++) {
        *run = combination((int64_t)(next_random(seed) % (uint64_t)combination_count()));
        for (int k = 0; k < count; k++)
            run->value[fixed[k]] = wanted->value[fixed[k]];
        *run = with_placement(run, (int)(next_random(seed) % (uint64_t)placement_count()));
        if (is_valid(run))
            return true;
    }
    return false;
}

/* Advance to the next combination of these factors; false: that was the last. */
static bool next(struct run *run, const enum factor *fixed, int count)
{
    for (int k = 0; k < count; k++) {
        if (++run->value[fixed[k]] < value_count(fixed[k]))
            return true;
        run->value[fixed[k]] = 0;
    }
    return false;
}

static int choose_ranks(uint64_t seed, struct run *runs)
{
    static const enum factor fixed[] = {PRECISION, BACKEND, RANKS, STAGE};
    struct run wanted = {0};
    int count = 0;
    do
        count += draw(&seed, &wanted, fixed, 4, &runs[count]);
    while (next(&wanted, fixed, 4));
    return count;
}

/* Index of the value of a factor that is this number; -1: none. */
static int value_of(enum factor f, int wanted)
{
    for (int v = 0; v < value_count(f); v++)
        if (known[f].numbers[v] == wanted)
            return v;
    return -1;
}

/* Servers and groups are left to the other lists: with one to three copies there is little
 * choice. */
static int choose_product(uint64_t seed, struct run *runs)
{
    static const enum factor all[] = {TP,    PP,   SCHEDULE, STAGE, RECOMPUTE,
                                      MODEL, TIED, SERVERS,  GROUP, RANKS};
    struct run wanted = {0};
    int count = 0;
    do
        for (int copies = 1; copies <= 3; copies++) {
            int over = number(&wanted, TP) * number(&wanted, PP);
            wanted.value[RANKS] = value_of(RANKS, over * copies);
            if (wanted.value[RANKS] >= 0 && has_schedule(&wanted, number(&wanted, PP)) &&
                (over == 1 || can_split_model(&wanted)))
                count += draw(&seed, &wanted, all, 10, &runs[count]);
        }
    while (next(&wanted, all, 7));
    return count;
}

int main(int argc, char **argv)
{
    static struct run runs[MOST_RUNS];
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    look_at_factors();
    const char *mode = argc > 1 ? argv[1] : "";
    bool pairs = strcmp(mode, "pairs") == 0, ranks = strcmp(mode, "ranks") == 0;
    if (!pairs && !ranks && strcmp(mode, "product") != 0) {
        fprintf(stderr, "usage: bits_runs pairs|product|ranks [SEED]\n");
        return 2;
    }
    int count = pairs   ? choose_placements(runs, choose_pairs(seed, runs))
                : ranks ? choose_ranks(seed, runs)
                        : choose_product(seed, runs);
    for (int i = 0; i < count; i++)
        print_run(&runs[i]);
    return pairs && !check_pairs(runs, count);
}
