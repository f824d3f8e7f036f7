/* compare -- the parts of `sifr compare`: what several runs have written about themselves, and how
 * they differ. Steps are matched by their number, never by their line: a run may begin at any step,
 * have gaps, and end anywhere. */
#ifndef CLI_COMPARE_H
#define CLI_COMPARE_H
#include "cli/command.h"

enum { COMPARE_RUNS = 8, COMPARE_END = 96 };

struct compare_step {
    int64_t step;
    double loss, seconds, tokens_per_second, mfu; /* NAN = not recorded */
    double in_flight, waited, stalled, tensor_waited;
};

struct compare_run {
    const char *path; /* borrowed */
    struct env *env;  /* borrowed */
    struct compare_step *steps;
    int64_t count, room;
    int64_t skipped;       /* lines of metrics.jsonl that are no record of a step */
    enum status status;    /* of reading the records */
    int64_t planned;       /* steps by the configuration; 0 = not known */
    char end[COMPARE_END]; /* "done", "not finished": for people */
    double val, val_best;  /* held-out loss: the last and the lowest; NAN = no evaluation */
    int64_t val_step, val_best_step;
    int64_t val_tokens; /* that the last evaluation predicted; 0 = not known */
    int ranks;
    size_t mem[MEM_CATEGORY_COUNT];   /* of the rank that holds the most, in the record with most */
    size_t held, gpu, host, disk;     /* bytes: their sum, and what else the record has; 0 = none */
    struct text config;               /* config.yaml as lines "section.key: value" */
    double clock_mhz, celsius, watts; /* of the last record; NAN = not recorded */
};

/* Read the folder. *run is valid for compare_close in any case. */
enum status compare_open(struct env *env, const char *path, struct compare_run *run);
void compare_close(struct compare_run *run);

/* --- differences of two runs ------------------------------------------------------------------ */

/* Losses are compared as bits; two that are not finite are equal. */
struct compare_losses {
    int64_t common, differing; /* steps that both have; of these, with different bits */
    int64_t first_common, last_common;
    int64_t first;  /* the first step that differs; 0 = none */
    double a, b;    /* the losses of that step */
    uint64_t ulps;  /* how many doubles apart they are; 0 if one is not finite */
    double largest; /* difference */
    int64_t largest_step;
};
void compare_losses(const struct compare_run *a, const struct compare_run *b,
                    struct compare_losses *out);
/* The distance of two finite numbers in units in the last place. */
uint64_t compare_ulps(double a, double b);

/* Medians over a set of steps. */
struct compare_time {
    int64_t count; /* of steps; 0 = nothing is known */
    double seconds, tokens_per_second, mfu;
    double waited, hidden;               /* hidden: share of communication; NAN = none */
    double tensor, stalled, other, rest; /* seconds: the parts of waited, and what is not waiting */
};
/* Over the steps that all runs have, or if there are too few, all steps of the run. The first step
 * of a run is left out: it warms up. */
enum status compare_time(const struct compare_run *runs, int count, int of, bool *common,
                         struct compare_time *out);

/* Append the keys whose values differ, a line each: the key, then a tab and a value for each run.
 * A key that a run does not have is "-". */
enum status compare_config(const struct compare_run *runs, int count, struct text *out);

/* --- compare_view.c ------------------------------------------------------------------------- */
enum status compare_view_text(struct cli *cli, const struct compare_run *runs, int count);
enum status compare_view_json(struct cli *cli, const struct compare_run *runs, int count);

#endif
