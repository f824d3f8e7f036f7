#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include "cli/batch/batch.h"

enum { LARGEST_STEPS = 20, SMALLEST_STEPS = 50, WINDOW_SHARE = 5 };

const char *const batch_rule_words[] = {"auto", "sqrt", "linear", "none", NULL};

enum batch_rule batch_rule_of(enum optimizer_kind kind)
{
    return kind == OPTIMIZER_SGD ? BATCH_RULE_LINEAR : BATCH_RULE_SQRT;
}

double batch_factor(enum batch_rule rule, double ratio)
{
    return rule == BATCH_RULE_SQRT ? sqrt(ratio) : rule == BATCH_RULE_LINEAR ? ratio : 1;
}

/* --- the ladder ----------------------------------------------------------------------------- */

static int compare_rungs(const void *a, const void *b)
{
    const struct batch_rung *left = a, *right = b;
    return (left->batch > right->batch) - (left->batch < right->batch);
}

static enum status add_rung(struct env *env, struct batch *batch, int64_t size)
{
    int64_t micro = batch->micro_batch, above = (size / micro + 1) * micro;
    if (size % micro != 0)
        return FAIL(env, USAGE,
                    "--batches: %" PRId64 " is not a multiple of train.micro_batch %" PRId64
                    "; try %" PRId64 ", or a smaller --train.micro_batch",
                    size, micro, above);
    for (int i = 0; i < batch->count; i++)
        if (batch->rungs[i].batch == size)
            return STATUS_OK;
    if (batch->count == BATCH_RUNGS)
        return FAIL(env, USAGE, "--batches: more than %d batches", BATCH_RUNGS);
    batch->rungs[batch->count++] = (struct batch_rung){.batch = size};
    return STATUS_OK;
}

static enum status add_list(struct env *env, const char *list, struct batch *batch)
{
    for (const char *s = list; *s;) {
        char *end;
        errno = 0;
        long long size = strtoll(s, &end, 10);
        if (!isdigit((unsigned char)*s) || errno || size < 1 || size > 1000000000 ||
            (*end && (*end != ',' || !end[1])))
            return FAIL(env, USAGE,
                        "--batches: '%s' is not a list of sequences per step, such as 8,16,32",
                        list);
        TRY(add_rung(env, batch, size));
        s = *end ? end + 1 : end;
    }
    return STATUS_OK;
}

static enum status add_defaults(struct env *env, struct batch *batch)
{
    if (batch->run_batch % (2 * batch->micro_batch) == 0)
        TRY(add_rung(env, batch, batch->run_batch / 2));
    for (int64_t factor = 2; factor <= 16; factor *= 2)
        TRY(add_rung(env, batch, batch->run_batch * factor));
    return STATUS_OK;
}

enum status batch_ladder_make(struct env *env, const char *list, struct batch *batch)
{
    batch->count = 0;
    TRY(add_rung(env, batch, batch->run_batch));
    TRY(*list ? add_list(env, list, batch) : add_defaults(env, batch));
    if (batch->count < 2)
        return FAIL(env, USAGE,
                    "--batches: only the batch of the run, %" PRId64
                    ": there is nothing to compare; add others",
                    batch->run_batch);
    qsort(batch->rungs, (size_t)batch->count, sizeof *batch->rungs, compare_rungs);
    return STATUS_OK;
}

/* --- steps and rates ------------------------------------------------------------------------ */

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

enum status batch_plan(struct env *env, int64_t tokens, struct batch *batch)
{
    int64_t smallest = batch->rungs[0].batch, largest = batch->rungs[batch->count - 1].batch;
    int64_t wanted = divide_up(tokens, batch->context);
    if (tokens == 0)
        wanted = largest * LARGEST_STEPS > smallest * SMALLEST_STEPS ? largest * LARGEST_STEPS
                                                                     : smallest * SMALLEST_STEPS;
    /* Whole steps of the largest batch. Where the others divide it, all rungs see exactly the same
     * sequences; else they differ by less than one step. */
    batch->sequences = divide_up(wanted, largest) * largest;
    if (batch->rate <= 0)
        return FAIL(env, CONFIG,
                    "the schedule's learning rate at step %" PRId64
                    " is 0: nothing would be learnt; choose an earlier --checkpoint",
                    batch->step);
    for (int i = 0; i < batch->count; i++) {
        struct batch_rung *rung = &batch->rungs[i];
        rung->steps = (batch->sequences + rung->batch / 2) / rung->batch;
        rung->lr =
            batch->rate * batch_factor(batch->rule, (double)rung->batch / (double)batch->run_batch);
    }
    return STATUS_OK;
}

int64_t batch_window(const struct batch *batch)
{
    const struct batch_rung *largest = &batch->rungs[batch->count - 1];
    return divide_up(largest->steps, WINDOW_SHARE) * largest->batch;
}

/* --- the verdict ---------------------------------------------------------------------------- */

/* The critical batch is the largest whose loss is at most the lowest loss of all smaller batches,
 * plus the tolerance. All rungs above it cost more than that. */
void batch_judge(struct batch *batch)
{
    double best = INFINITY;
    batch->held_out = true;
    batch->critical = -1;
    for (int i = 0; i < batch->count; i++)
        if (!batch->rungs[i].diverged && isnan(batch->rungs[i].val_loss))
            batch->held_out = false;
    for (int i = 0; i < batch->count; i++) {
        struct batch_rung *rung = &batch->rungs[i];
        double loss = batch->held_out ? rung->val_loss : rung->mean_loss;
        rung->loss = rung->diverged || !isfinite(loss) ? INFINITY : loss;
        best = rung->loss < best ? rung->loss : best;
        rung->excess = isfinite(rung->loss) ? rung->loss - best : INFINITY;
        rung->passes = rung->excess <= batch->tolerance;
        if (rung->passes)
            batch->critical = i;
    }
}
