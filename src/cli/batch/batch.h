/* batch -- measures the critical batch size of a run: from one of its checkpoints, training
 * continues with several batch sizes (rungs of a ladder) over the same data, and the losses at the
 * end are compared. docs/batch.md has the definitions.
 *
 * command_batch.c reads the run and walks the ladder, batch_ladder.c has the arithmetic,
 * batch_rung.c trains one rung with the train command, batch_data.c compares the data of the rungs,
 * and batch_view.c prints the result.
 */
#ifndef CLI_BATCH_H
#define CLI_BATCH_H
#include "cli/command.h"
#include "train/config/config.h"

enum { BATCH_RUNGS = 32 };

/* How the learning rate follows the batch. */
enum batch_rule { BATCH_RULE_AUTO, BATCH_RULE_SQRT, BATCH_RULE_LINEAR, BATCH_RULE_NONE };
extern const char *const batch_rule_words[]; /* in the order of the enum, NULL-terminated */

struct batch_rung {
    int64_t batch; /* sequences per step */
    int64_t steps;
    double lr;
    bool diverged;
    bool reused;      /* finished by an earlier call */
    double val_loss;  /* held out, after the last step; NAN = no held-out data */
    double mean_loss; /* training loss, mean over the last batch_window sequences */
    double seconds;
    /* set by batch_judge: */
    double loss;   /* what is compared; INFINITY = diverged */
    double excess; /* over the lowest loss of this rung and the smaller ones */
    bool passes;   /* excess <= tolerance */
};

struct batch {                            /* open; strings are borrowed */
    const char *run, *checkpoint, *out;   /* folders */
    int64_t step;                         /* of the checkpoint */
    int64_t ranks;                        /* 0 = one, without -n */
    int64_t run_batch, micro_batch;       /* sequences; the first at the checkpoint */
    bool ramped;                          /* the run has a train.batch_ramp */
    int64_t seen;                         /* tokens up to the checkpoint */
    int64_t context;                      /* tokens per sequence */
    double peak, rate;                    /* train.lr of the run, and its rate at the checkpoint */
    enum batch_rule rule;                 /* not AUTO */
    double tolerance;                     /* nats */
    int64_t sequences;                    /* that every rung trains on */
    double noise_scale;                   /* of the run at the checkpoint, in sequences; NAN */
    struct batch_rung rungs[BATCH_RUNGS]; /* in ascending order of the batch */
    int count;
    bool held_out; /* compared by held-out loss; set by batch_judge, like the next */
    int critical;  /* index of the rung; -1 = all have diverged */
};

/* --- batch_ladder.c: the arithmetic --------------------------------------------------------- */

enum batch_rule batch_rule_of(enum optimizer_kind kind); /* sqrt, for SGD linear */
/* The factor of the learning rate for a batch `ratio` times that of the run. */
double batch_factor(enum batch_rule rule, double ratio);
/* Fill in the batches of the rungs from "8,16,32", or for "" from the default ladder: 1/2, 1, 2, 4,
 * 8 and 16 times the batch of the run. The run's own is always among them. */
enum status batch_ladder_make(struct env *env, const char *list, struct batch *batch);
/* Fill in `sequences`, and the steps and rates of the rungs. `tokens` of each rung; 0 = enough for
 * 20 steps of the largest batch and 50 of the smallest. */
enum status batch_plan(struct env *env, int64_t tokens, struct batch *batch);
/* Sequences at the end of a rung whose training loss is averaged: a fifth, in whole steps of the
 * largest batch. */
int64_t batch_window(const struct batch *batch);
/* Compare the losses of finished rungs. */
void batch_judge(struct batch *batch);

/* --- batch_rung.c ----------------------------------------------------------------------------- */

/* Before any rung is trained: fail if its folder is of an earlier call with other settings. */
enum status batch_rung_check(struct cli *cli, const struct batch *batch, struct batch_rung *rung);
/* Train a rung into OUT/B<batch> with the configuration OUT/base.yaml, or take the result of an
 * earlier call. STATUS_SAVED if it was stopped: the same call resumes it. */
enum status batch_rung_run(struct cli *cli, const struct batch *batch, struct batch_rung *rung);

/* --- batch_data.c ----------------------------------------------------------------------------- */

/* Fail if the data files differ from those with which the first rung in OUT began. `trained` is the
 * rung that has just been trained; NULL = before a rung. */
enum status batch_data_check(struct cli *cli, const struct batch *batch,
                             const struct data_config *data, const struct batch_rung *trained);

/* --- batch_view.c ----------------------------------------------------------------------------- */

void batch_show(struct cli *cli, const struct batch *batch);
/* Write OUT/batch.json; with `print` also to stdout, as one line. */
enum status batch_write(struct cli *cli, const struct batch *batch, bool print);

#endif
