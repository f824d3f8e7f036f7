/* Checking mode finds units that write too much or too little, and names unit and tensor; every
 * allocation may fail. */
#include "lib_rig.h"
#include "lib/lib_impl.h"

/* --- units with a fault --------------------------------------------------------------------- */

static void write_past_gradient(void *user, const struct sifr_call *call)
{
    embed_backward(user, call);
    ((float *)call->grads[0])[VOCAB * WIDTH] = 1.0f;
}

static void leave_a_gap(void *user, const struct sifr_call *call)
{
    float *table = call->grads[0], before;
    memcpy(&before, &table[17], sizeof before);
    embed_backward(user, call);
    memcpy(&table[17], &before, sizeof before);
}

static void write_past_output(void *user, const struct sifr_call *call)
{
    embed_forward(user, call);
    ((float *)call->output)[call->rows * WIDTH] = 1.0f;
}

static void write_past_buffer(void *user, const struct sifr_call *call)
{
    hidden_forward(user, call);
    ((float *)call->buffers[HIDDEN_UNITS])[call->rows * HIDDEN] = 1.0f;
}

static void write_past_stream_gradient(void *user, const struct sifr_call *call)
{
    hidden_backward(user, call);
    ((float *)call->gradient)[call->rows * WIDTH] = 1.0f;
}

static void give_up(void *user, const struct sifr_call *call)
{
    (void)user;
    sifr_fail(call, "the ids are not mine");
}

struct fault {
    int unit;
    void (*forward)(void *user, const struct sifr_call *call);
    void (*backward)(void *user, const struct sifr_call *call);
    int status;
    const char *message;
    int ranks;
};

static const struct fault faults[] = {
    {0, NULL, write_past_gradient, SIFR_CONFIG,
     "unit 'embed', backward pass: wrote past the end of 'table'", 1},
    {0, NULL, leave_a_gap, SIFR_CONFIG,
     "unit 'embed', backward pass: did not write 'table', element 17", 1},
    {0, write_past_output, NULL, SIFR_CONFIG,
     "unit 'embed', forward pass: wrote past the end of 'output'", 1},
    {1, write_past_buffer, NULL, SIFR_CONFIG,
     "unit 'a', forward pass: wrote past the end of 'units'", 1},
    {2, NULL, write_past_stream_gradient, SIFR_CONFIG,
     "unit 'b', backward pass: wrote past the end of 'gradient'", 1},
    {0, give_up, NULL, SIFR_CALLBACK, "the ids are not mine", 1},
    {0, NULL, leave_a_gap, SIFR_CONFIG, "did not write 'table', element 17", 3},
};

struct trial {
    const struct fault *fault;
    char error[256];
};

static int try_fault(struct sifr_context *context, void *user)
{
    struct trial *trial = user;
    const struct fault *fault = trial->fault;
    struct sifr_unit units[UNITS];
    struct sifr_options options = small_options();
    struct sifr_model model = model_of(units);
    struct sifr_trainer *trainer;
    struct sifr_result result = {.size = sizeof result};
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    fill_step(0, ids, labels);
    memcpy(units, good_units, sizeof units);
    if (fault && fault->forward)
        units[fault->unit].forward = fault->forward;
    if (fault && fault->backward)
        units[fault->unit].backward = fault->backward;
    options.checked = 1;
    int status = sifr_trainer_create(context, &model, &options, &trainer);
    if (status != 0)
        return status;
    for (int step = 0; status == 0 && step < 2; step++)
        status = sifr_step_tokens(trainer, ids, labels, 1e-3, &result);
    if (sifr_rank(context) == 0)
        snprintf(trial->error, sizeof trial->error, "%s", sifr_error(context));
    sifr_trainer_destroy(trainer);
    return status;
}

static void test_faults_of_units_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct sifr_job job = {.size = sizeof job, .threads = 1, .ranks = faults[i].ranks};
        struct trial trial = {.fault = &faults[i]};
        assert_int_equal(sifr_run(&job, try_fault, &trial), faults[i].status);
        if (!strstr(trial.error, faults[i].message))
            fail_msg("expected '%s' in '%s'", faults[i].message, trial.error);
    }
}

static void test_good_units_pass(void **state)
{
    (void)state;
    struct sifr_job job = {.size = sizeof job, .threads = 1};
    struct trial trial = {0};
    assert_int_equal(sifr_run(&job, try_fault, &trial), 0);
}

/* --- out of memory -------------------------------------------------------------------------- */

struct shortage {
    int rank;
    int64_t at; /* the allocation of that rank that fails */
    bool failed;
};

static int run_short(struct sifr_context *context, void *user)
{
    struct shortage *shortage = user;
    struct sifr_options options = small_options();
    struct sifr_model model = model_of(good_units);
    struct sifr_trainer *trainer;
    struct sifr_result result = {.size = sizeof result};
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    fill_step(0, ids, labels);
    options.stage = 3;
    options.checked = 1;
    if (sifr_rank(context) == shortage->rank)
        mem_fail_at(context->env.mem, shortage->at);
    int status = sifr_trainer_create(context, &model, &options, &trainer);
    if (sifr_rank(context) == shortage->rank) {
        shortage->failed = status == SIFR_MEMORY && strstr(sifr_error(context), "out of memory");
        mem_fail_at(context->env.mem, 0);
    }
    if (status != 0)
        return status;
    size_t before = mem_total(context->env.mem);
    status = sifr_step_tokens(trainer, ids, labels, 1e-3, &result);
    if (mem_total(context->env.mem) != before)
        status = SIFR_INTERNAL; /* a step allocates nothing */
    sifr_trainer_destroy(trainer);
    return status;
}

static void fail_every_allocation(int ranks, int rank)
{
    struct sifr_job job = {.size = sizeof job, .threads = 1, .ranks = ranks};
    int64_t n = 1;
    for (int status = SIFR_MEMORY; status != 0; n++) {
        struct shortage shortage = {.rank = rank, .at = n};
        status = sifr_run(&job, run_short, &shortage);
        if (status != 0 && (status != SIFR_MEMORY || !shortage.failed))
            fail_msg("allocation %d of rank %d: status %d", (int)n, rank, status);
    }
    assert_true(n > 40);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    fail_every_allocation(1, 0);
    fail_every_allocation(2, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults_of_units_are_named),
        cmocka_unit_test(test_good_units_pass),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
