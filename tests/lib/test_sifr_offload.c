/* Offload in the public library: state, sums and parameters on disk give the same bits in every layout, plans
 * count them, checkpoints do not depend on them, a program stays below a limit that it would exceed
 * without, and wrong settings are refused. */
#include "lib_rig.h"
#include <math.h>
#include <unistd.h>

enum { STEPS = 4, TABLE = VOCAB * WIDTH, HIDDEN_COUNT = HIDDEN * WIDTH };

struct outcome {
    float table[TABLE], hidden[HIDDEN_COUNT];
    double losses[STEPS], norms[STEPS];
};

struct run {
    struct sifr_options options;
    struct sifr_offload offload;
    bool offloaded, deep;
    int ranks;
    const char *from, *to; /* resume from, save to; NULL: do not */
    int64_t first, until;  /* steps */
    const char *write;     /* a parameter to read, change and write back before the first step */
    int odd_rank;          /* has a wrong folder, or with `alone` no offload; -1: none */
    bool alone;
    struct outcome outcome; /* of rank 0, as all that follows */
    size_t allocated[SIFR_MEMORY_KINDS];
    char error[512];
};

/* More units than slots of activations. */
static const struct sifr_param deep_params[2][2] = {
    {{"c.in", 2, {HIDDEN, WIDTH}, SIFR_NORMAL, 0.5, 1, 1},
     {"c.out", 2, {WIDTH, HIDDEN}, SIFR_NORMAL, 0.5, 1, 1}},
    {{"d.in", 2, {HIDDEN, WIDTH}, SIFR_NORMAL, 0.5, 1, 1},
     {"d.out", 2, {WIDTH, HIDDEN}, SIFR_NORMAL, 0.5, 1, 1}},
};

static struct sifr_model deep_model(void)
{
    static const struct sifr_unit units[] = {
        {.name = "embed",
         .width = WIDTH,
         PARAMS(table_params),
         .forward = embed_forward,
         .backward = embed_backward},
        HIDDEN_UNIT("a", hidden_params[0]),
        HIDDEN_UNIT("b", hidden_params[1]),
        HIDDEN_UNIT("c", deep_params[0]),
        HIDDEN_UNIT("d", deep_params[1]),
        {.name = "head", PARAMS(table_params), BUFFERS(head_buffers), .loss = head_loss},
    };
    struct sifr_model model = model_of(units);
    model.unit_count = sizeof units / sizeof *units;
    return model;
}

static struct sifr_model model_for(const struct run *run)
{
    return run->deep ? deep_model() : model_of(good_units);
}

static char folder[64]; /* of the files: nothing has a name there */
static char saves[64];

static void expect_plan(struct sifr_context *context, struct sifr_trainer *trainer,
                        const struct sifr_options *options, struct run *run)
{
    struct sifr_model model = model_for(run);
    struct sifr_plan plan = {.size = sizeof plan};
    size_t memory = 0;
    assert_int_equal(sifr_plan(context, &model, options, run->ranks, sifr_rank(context), &plan), 0);
    for (int kind = 0; kind < SIFR_MEMORY_KINDS; kind++) {
        size_t allocated = sifr_memory(trainer, kind);
        if (kind != SIFR_OTHER && plan.bytes[kind] != allocated)
            fail_msg("rank %d, kind %d: planned %zu, allocated %zu", sifr_rank(context), kind,
                     plan.bytes[kind], allocated);
        memory += kind == SIFR_DISK ? 0 : plan.bytes[kind];
        if (sifr_rank(context) == 0)
            run->allocated[kind] = allocated;
    }
    assert_int_equal(plan.total, memory);
}

static void change(struct sifr_trainer *trainer, const char *name)
{
    float values[HIDDEN_COUNT], back[HIDDEN_COUNT];
    assert_int_equal(sifr_read(trainer, name, values, HIDDEN_COUNT), 0);
    for (int i = 0; i < HIDDEN_COUNT; i++)
        values[i] += 0.1f * (float)(i % 3);
    assert_int_equal(sifr_write(trainer, name, values, HIDDEN_COUNT), 0);
    assert_int_equal(sifr_read(trainer, name, back, HIDDEN_COUNT), 0);
    assert_memory_equal(values, back, sizeof values);
}

static int train(struct sifr_context *context, struct sifr_trainer *trainer, struct run *run)
{
    struct outcome outcome = {0};
    struct sifr_result result = {.size = sizeof result};
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    int64_t step = 0;
    int status = run->from ? sifr_resume(trainer, run->from, &step, NULL, NULL) : 0;
    assert_int_equal(step, status == 0 ? run->first : step);
    if (run->write)
        change(trainer, run->write);
    for (; status == 0 && step < run->until; step++) {
        fill_step(step, ids, labels);
        status = sifr_step_tokens(trainer, ids, labels, 1e-2, &result);
        outcome.losses[step] = result.loss;
        outcome.norms[step] = result.grad_norm;
        if (status == 0 && run->to)
            status = sifr_checkpoint(trainer, run->to, NULL, 0);
    }
    if (status == 0)
        status = sifr_checkpoint_wait(trainer);
    if (status == 0)
        status = sifr_read(trainer, "table", outcome.table, TABLE);
    if (status == 0)
        status = sifr_read(trainer, "b.out", outcome.hidden, HIDDEN_COUNT);
    if (sifr_rank(context) == 0)
        run->outcome = outcome;
    return status;
}

/* The trainer copies the settings: they are gone after its creation. */
static int create(struct sifr_context *context, struct run *run, struct sifr_trainer **trainer)
{
    struct sifr_model model = model_for(run);
    struct sifr_options options = run->options;
    struct sifr_offload offload = run->offload;
    char where[128] = "";
    bool odd = sifr_rank(context) == run->odd_rank;
    if (odd && !run->alone)
        offload.folder = "/nowhere";
    if (offload.folder) {
        snprintf(where, sizeof where, "%s", offload.folder);
        offload.folder = where;
    }
    options.offload = run->offloaded && !(odd && run->alone) ? &offload : NULL;
    int status = sifr_trainer_create(context, &model, &options, trainer);
    if (status == 0)
        expect_plan(context, *trainer, &options, run);
    memset(&offload, 0xff, sizeof offload);
    memset(where, 'x', sizeof where - 1);
    return status;
}

static int rank_main(struct sifr_context *context, void *user)
{
    struct run *run = user;
    struct sifr_trainer *trainer;
    int status = create(context, run, &trainer);
    if (status == 0)
        status = train(context, trainer, run);
    if (sifr_rank(context) == 0)
        snprintf(run->error, sizeof run->error, "%s", sifr_error(context));
    sifr_trainer_destroy(trainer);
    return status;
}

static int start(struct run *run)
{
    struct sifr_job job = {.size = sizeof job, .ranks = run->ranks, .threads = 1, .timeout = 60};
    return sifr_run(&job, rank_main, run);
}

static struct run run_of(int ranks, int stage)
{
    struct run run = {.options = small_options(), .ranks = ranks, .until = STEPS, .odd_rank = -1};
    run.options.stage = stage;
    return run;
}

static void offload_to(struct run *run, enum sifr_place optimizer, enum sifr_place grads)
{
    run->offloaded = true;
    run->offload = (struct sifr_offload){
        .size = sizeof run->offload, .optimizer = optimizer, .grads = grads, .folder = folder};
}

static void expect_ok(struct run *run, const char *what)
{
    if (start(run) != 0)
        fail_msg("%s, %d ranks, stage %d: %s", what, run->ranks, run->options.stage, run->error);
}

static void expect_same(struct run *run, const struct outcome *expected, const char *what)
{
    expect_ok(run, what);
    if (memcmp(&run->outcome, expected, sizeof *expected) != 0)
        fail_msg("%s, %d ranks, stage %d: other bits", what, run->ranks, run->options.stage);
}

static int open_folders(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sifr-far-XXXXXX");
    snprintf(saves, sizeof saves, "/tmp/sifr-saves-XXXXXX");
    return mkdtemp(folder) && mkdtemp(saves) ? 0 : 1;
}

/* rmdir fails if a file is left. */
static int close_folders(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", saves);
    return system(command) || rmdir(folder);
}

/* --- bits and bytes ------------------------------------------------------------------------- */

static void placements(enum sifr_type precision)
{
    struct run plain = run_of(1, 0);
    plain.options.precision = precision;
    expect_ok(&plain, "plain");
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int stage = 0; stage <= 3; stage++) {
            if (!testing_sampled())
                continue;
            struct run run = run_of(ranks, stage);
            run.options.precision = precision;
            offload_to(&run, SIFR_ON_DISK, SIFR_ON_DEVICE);
            expect_same(&run, &plain.outcome, "state on disk");
            assert_int_equal(run.allocated[SIFR_OPTIMIZER], 0);
            size_t state = run.allocated[SIFR_DISK];
            assert_true(state > 0);
            offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
            run.offload.window = 1;
            expect_same(&run, &plain.outcome, "state and sums on disk");
            assert_true(run.allocated[SIFR_DISK] > state || (stage < 2 && ranks > 1));
            offload_to(&run, SIFR_ON_DEVICE, SIFR_ON_DISK);
            expect_same(&run, &plain.outcome, "sums on disk");
            assert_true(run.allocated[SIFR_OPTIMIZER] > 0);
            offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
            run.offload.share = 0.5;
            expect_same(&run, &plain.outcome, "half of the state on disk");
            assert_true(run.allocated[SIFR_OPTIMIZER] > 0);
            offload_to(&run, SIFR_ON_DEVICE, SIFR_ON_DEVICE);
            run.offload.params = SIFR_ON_DISK;
            expect_same(&run, &plain.outcome, "parameters on disk");
            assert_int_equal(run.allocated[SIFR_PARAMS], 0);
            size_t params = run.allocated[SIFR_DISK];
            assert_true(params > 0 && run.allocated[SIFR_OPTIMIZER] > 0);
            offload_to(&run, SIFR_ON_DISK, SIFR_ON_DEVICE);
            run.offload.params = SIFR_ON_DISK;
            run.offload.window = 1;
            run.options.prefetch = stage % 3;
            expect_same(&run, &plain.outcome, "state and parameters on disk");
            assert_true(run.allocated[SIFR_DISK] > params && run.allocated[SIFR_OPTIMIZER] == 0);
        }
}

static void test_same_bits_over_placements_stages_and_ranks(void **state)
{
    (void)state;
    placements(SIFR_F32);
    placements(SIFR_BF16);
}

static void test_same_bits_with_servers_pipelines_and_optimizers(void **state)
{
    (void)state;
    for (int optimizer = SIFR_ADAMW; optimizer <= SIFR_MUON; optimizer++) {
        struct run plain = run_of(1, 0), run = run_of(3, 2);
        plain.options.optimizer = optimizer;
        expect_ok(&plain, "plain");
        run.options.optimizer = optimizer;
        run.options.servers = 1;
        offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
        expect_same(&run, &plain.outcome, "servers");
        run = run_of(4, 3);
        run.options.optimizer = optimizer;
        run.options.pipeline = 2;
        offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
        expect_same(&run, &plain.outcome, "pipeline");
        run.offload.params = SIFR_ON_DISK;
        expect_same(&run, &plain.outcome, "pipeline, with parameters on disk");
        assert_true(run.allocated[SIFR_DISK] > 0);
    }
}

/* On the CPU, memory of the host is memory of the device; a variable for tests moves it all the
 * same. */
static void test_state_on_the_host(void **state)
{
    (void)state;
    struct run plain = run_of(2, 2), run;
    plain.options.precision = SIFR_BF16;
    expect_ok(&plain, "plain");
    run = plain;
    offload_to(&run, SIFR_ON_HOST, SIFR_ON_HOST);
    expect_same(&run, &plain.outcome, "host, which is the device");
    assert_memory_equal(run.allocated, plain.allocated, sizeof run.allocated);
    setenv("SIFR_CPU_OFFLOAD", "1", 1);
    for (int update = SIFR_UPDATE_AUTO; update <= SIFR_UPDATE_ON_HOST; update++) {
        run.offload.update = update;
        run.offload.params = update == SIFR_UPDATE_AUTO ? SIFR_ON_DEVICE : SIFR_ON_HOST;
        expect_same(&run, &plain.outcome, "host");
        assert_int_equal(run.allocated[SIFR_DISK], 0);
        assert_true(run.allocated[SIFR_SLOTS] > plain.allocated[SIFR_SLOTS]);
    }
    unsetenv("SIFR_CPU_OFFLOAD");
}

static void test_activations_on_the_host(void **state)
{
    (void)state;
    struct run plain = run_of(1, 0);
    plain.deep = true;
    expect_ok(&plain, "plain");
    for (int forced = 0; forced < 2; forced++)
        for (int recompute = SIFR_KEEP_ALL; recompute <= SIFR_RECOMPUTE_ALL; recompute++)
            for (int ranks = 1; ranks <= 2; ranks++) {
                struct run run = run_of(ranks, ranks == 1 ? 0 : 3);
                run.deep = true;
                run.options.recompute = recompute;
                run.options.checked = recompute == SIFR_RECOMPUTE_ALL;
                offload_to(&run, SIFR_ON_DEVICE, SIFR_ON_DEVICE);
                run.offload.activations = SIFR_ON_HOST;
                setenv("SIFR_CPU_OFFLOAD", forced ? "1" : "0", 1);
                expect_same(&run, &plain.outcome, "activations on the host");
            }
    unsetenv("SIFR_CPU_OFFLOAD");
}

/* A gradient function sees sums on the device, so they stay there. */
static int halve(void *user, const struct sifr_gradient *gradient)
{
    float *values = gradient->values;
    (void)user;
    assert_int_equal(gradient->type, SIFR_F32);
    for (int64_t i = 0; i < gradient->count; i++)
        values[i] *= 0.5f;
    return 0;
}

static void test_a_gradient_function_keeps_sums_on_the_device(void **state)
{
    (void)state;
    struct run plain = run_of(2, 2), run;
    plain.options.gradient = halve;
    expect_ok(&plain, "plain");
    run = plain;
    offload_to(&run, SIFR_ON_DEVICE, SIFR_ON_DISK);
    expect_same(&run, &plain.outcome, "sums on disk");
    assert_int_equal(run.allocated[SIFR_GRADS], plain.allocated[SIFR_GRADS]);
    assert_int_equal(run.allocated[SIFR_DISK], 0);
    offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
    expect_same(&run, &plain.outcome, "state and sums on disk");
    assert_true(run.allocated[SIFR_DISK] > 0);
}

/* --- parameters and checkpoints ------------------------------------------------------------- */

static void test_parameters_are_read_and_written(void **state)
{
    (void)state;
    for (int number = 0; number < 12; number++) {
        if (!testing_sampled())
            continue;
        int ranks = 1 + number % 3;
        bool params = number / 3 % 2;
        struct run plain = run_of(1, 0), run = run_of(ranks, 3);
        plain.write = run.write = "b.out";
        /* in bf16 masters are on disk; in fp32 parameters are their own */
        plain.options.precision = run.options.precision = number / 6 ? SIFR_F32 : SIFR_BF16;
        expect_ok(&plain, "plain");
        offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
        run.offload.params = params ? SIFR_ON_DISK : SIFR_ON_DEVICE;
        expect_same(&run, &plain.outcome, params ? "written to disk" : "written");
    }
}

/* `first` saves every step, `second` resumes in the middle. */
static void hand_over(struct run first, struct run second, const char *what)
{
    char to[96];
    struct run whole = run_of(1, 0);
    whole.options.precision = first.options.precision;
    expect_ok(&whole, "whole");
    snprintf(to, sizeof to, "%s/%s", saves, what);
    first.to = second.from = to;
    first.until = second.first = STEPS / 2;
    expect_ok(&first, what);
    memset(whole.outcome.losses, 0, STEPS / 2 * sizeof *whole.outcome.losses);
    memset(whole.outcome.norms, 0, STEPS / 2 * sizeof *whole.outcome.norms);
    expect_same(&second, &whole.outcome, what);
}

static void test_checkpoints_do_not_depend_on_the_placement(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        struct run far = run_of(3, 3), near = run_of(2, 1), other = run_of(1, 0);
        far.options.precision = near.options.precision = other.options.precision = SIFR_BF16;
        far.options.checkpoint_async = near.options.checkpoint_async = async;
        offload_to(&far, SIFR_ON_DISK, SIFR_ON_DISK);
        offload_to(&other, SIFR_ON_DISK, SIFR_ON_DEVICE);
        other.offload.share = 0.3;
        hand_over(far, near, async ? "from-disk-async" : "from-disk");
        hand_over(near, far, async ? "to-disk-async" : "to-disk");
        hand_over(far, other, async ? "from-disk-to-disk-async" : "from-disk-to-disk");
        far.offload.params = SIFR_ON_DISK;
        far.options.precision = near.options.precision = SIFR_F32; /* parameters are masters */
        hand_over(far, near, async ? "params-from-disk-async" : "params-from-disk");
        hand_over(near, far, async ? "params-to-disk-async" : "params-to-disk");
    }
}

/* --- a limit -------------------------------------------------------------------------------- */

enum {
    BULK_UNITS = 8,
    BULK = 1 << 20,
    BULK_BATCHES = 2,
    LIMIT = 90000000,
    LIMIT_WITHOUT_PARAMS = 66000000
};

static void bulk_forward(void *user, const struct sifr_call *call)
{
    const float *input = call->input, *param = call->params[0];
    float *output = call->output;
    (void)user;
    output[0] = (input ? input[0] : 0) + param[BULK - 1];
}

static void bulk_backward(void *user, const struct sifr_call *call)
{
    const float *param = call->params[0], *gradient = call->gradient;
    float *grad = call->grads[0];
    (void)user;
    for (int i = 0; i < BULK; i++)
        grad[i] = param[i] * gradient[0];
}

static void bulk_loss(void *user, const struct sifr_call *call)
{
    const float *input = call->input;
    float *gradient = call->gradient;
    (void)user;
    *call->loss = (double)input[0];
    if (call->pass == SIFR_LOSS)
        gradient[0] = call->loss_scale;
}

struct bulk {
    struct sifr_offload offload;
    bool offloaded;
    double norms[2];
    size_t disk;
    char error[256];
};

static int bulk_main(struct sifr_context *context, void *user)
{
    static const char *const names[BULK_UNITS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    static const float x[BULK_BATCHES];
    static const struct sifr_input inputs[] = {{.name = "x", .type = SIFR_F32, .count = 1}};
    const void *data[] = {x};
    struct bulk *bulk = user;
    struct sifr_param params[BULK_UNITS];
    struct sifr_unit units[BULK_UNITS + 1];
    struct sifr_options options;
    struct sifr_result result = {.size = sizeof result};
    struct sifr_trainer *trainer;
    for (int u = 0; u < BULK_UNITS; u++) {
        params[u] = (struct sifr_param){names[u], 1, {BULK}, SIFR_NORMAL, 0.1, 1, 0};
        units[u] = (struct sifr_unit){.name = names[u],
                                      .width = 1,
                                      .params = &params[u],
                                      .param_count = 1,
                                      .param_size = sizeof *params,
                                      .forward = bulk_forward,
                                      .backward = bulk_backward};
    }
    units[BULK_UNITS] = (struct sifr_unit){.name = "loss", .loss = bulk_loss};
    const struct sifr_model model = {
        .size = sizeof model, .units = SIFR_TABLE(units), .inputs = SIFR_TABLE(inputs)};
    const struct sifr_batch batch = {.size = sizeof batch, .inputs = data};
    sifr_options_init(&options);
    options.micro_batches = BULK_BATCHES;
    options.offload = bulk->offloaded ? &bulk->offload : NULL;
    int status = sifr_trainer_create(context, &model, &options, &trainer);
    bulk->disk = status == 0 ? sifr_memory(trainer, SIFR_DISK) : 0;
    for (int step = 0; status == 0 && step < 2; step++) {
        status = sifr_step(trainer, &batch, 1e-2, &result);
        bulk->norms[step] = result.grad_norm;
    }
    snprintf(bulk->error, sizeof bulk->error, "%s", sifr_error(context));
    sifr_trainer_destroy(trainer);
    return status;
}

/* 4 bytes each of parameters and sums and 8 of state, of 8 Mi parameters, are 134 MB. */
static void test_a_program_stays_below_its_limit(void **state)
{
    (void)state;
    struct sifr_job job = {.size = sizeof job, .threads = 1};
    struct bulk plain = {.offloaded = false}, limited = plain, far = {.offloaded = true};
    far.offload = (struct sifr_offload){.size = sizeof far.offload,
                                        .optimizer = SIFR_ON_DISK,
                                        .grads = SIFR_ON_DISK,
                                        .window = 4 << 20,
                                        .folder = folder};
    assert_int_equal(sifr_run(&job, bulk_main, &plain), 0);
    assert_int_equal(plain.disk, 0);
    job.device_memory = LIMIT;
    assert_int_equal(sifr_run(&job, bulk_main, &limited), SIFR_MEMORY);
    if (!strstr(limited.error, "more than sifr_job.device_memory allows, 85.8 MiB; raise it"))
        fail_msg("the error is '%s'", limited.error);
    if (sifr_run(&job, bulk_main, &far) != 0)
        fail_msg("with offload: %s", far.error);
    assert_int_equal(far.disk, 12 * BULK_UNITS * BULK);
    assert_memory_equal(far.norms, plain.norms, sizeof plain.norms);
    job.device_memory = LIMIT_WITHOUT_PARAMS;
    assert_int_equal(sifr_run(&job, bulk_main, &far), SIFR_MEMORY);
    far.offload.params = SIFR_ON_DISK;
    if (sifr_run(&job, bulk_main, &far) != 0)
        fail_msg("with parameters on disk: %s", far.error);
    assert_int_equal(far.disk, 16 * BULK_UNITS * BULK);
    assert_memory_equal(far.norms, plain.norms, sizeof plain.norms);
}

/* --- mistakes ------------------------------------------------------------------------------- */

static void expect_refused(struct run run, int status, const char *error)
{
    assert_int_equal(start(&run), status);
    if (!strstr(run.error, error))
        fail_msg("expected '%s' in '%s'", error, run.error);
}

#define WITH(field, value) \
    ((run = run_of(1, 0)), offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK), (run.field = (value)), run)

static void test_wrong_settings_are_refused(void **state)
{
    (void)state;
    struct run run;
    expect_refused(WITH(offload.size, 8), SIFR_CONFIG, "sifr_offload: wrong size");
    expect_refused(WITH(offload.optimizer, SIFR_ON_DISK + 1), SIFR_CONFIG,
                   "offload.optimizer is 3, offload.grads 2 and offload.params 0; use "
                   "SIFR_ON_DEVICE");
    expect_refused(WITH(offload.grads, -1), SIFR_CONFIG,
                   "offload.optimizer is 2, offload.grads -1 and offload.params 0; use "
                   "SIFR_ON_DEVICE");
    expect_refused(WITH(offload.params, SIFR_ON_DISK + 1), SIFR_CONFIG,
                   "offload.optimizer is 2, offload.grads 2 and offload.params 3; use "
                   "SIFR_ON_DEVICE");
    expect_refused(WITH(offload.activations, SIFR_ON_DISK), SIFR_CONFIG,
                   "offload.activations is 2; use SIFR_ON_DEVICE or SIFR_ON_HOST");
    setenv("SIFR_CPU_OFFLOAD", "1", 1);
    run = run_of(2, 0);
    run.options.pipeline = 2;
    offload_to(&run, SIFR_ON_DEVICE, SIFR_ON_DEVICE);
    run.offload.activations = SIFR_ON_HOST;
    expect_refused(run, SIFR_CONFIG, "offload.activations=host does not work in a pipeline");
    unsetenv("SIFR_CPU_OFFLOAD");
    expect_refused(WITH(offload.share, 1.5), SIFR_CONFIG, "offload.share must be 0 to 1");
    expect_refused(WITH(offload.share, -0.5), SIFR_CONFIG, "offload.share must be 0 to 1");
    expect_refused(WITH(offload.share, (double)NAN), SIFR_CONFIG, "offload.share must be 0 to 1");
    expect_refused(WITH(offload.window, -1), SIFR_CONFIG, "offload.window at least 0");
    expect_refused(WITH(offload.update, SIFR_UPDATE_ON_HOST + 1), SIFR_CONFIG,
                   "offload.update is 3; use SIFR_UPDATE_AUTO");
}

/* A program of an earlier version has no `params`: what is behind its struct is not read. */
static void test_an_older_program(void **state)
{
    (void)state;
    struct run plain = run_of(2, 2), run = plain;
    expect_ok(&plain, "plain");
    offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
    run.offload.size = offsetof(struct sifr_offload, params);
    run.offload.unused = -1;
    run.offload.params = SIFR_ON_DISK + 1;
    expect_same(&run, &plain.outcome, "an older program");
    assert_int_equal(run.allocated[SIFR_PARAMS], plain.allocated[SIFR_PARAMS]);
}

static void test_a_missing_folder_fails_all_ranks(void **state)
{
    (void)state;
    struct run run;
    const char *error = "cannot create a file in '/nowhere' for optimizer 'optimizer state' "
                        "(offload.folder): No such file or directory; name an existing folder";
    expect_refused(WITH(offload.folder, "/nowhere"), SIFR_IO, error);
    setenv("TMPDIR", "/nowhere", 1);
    expect_refused(WITH(offload.folder, NULL), SIFR_IO, error);
    unsetenv("TMPDIR");
    run = run_of(3, 2);
    offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
    run.odd_rank = 1;
    expect_refused(run, SIFR_IO, error);
}

static void test_ranks_must_agree(void **state)
{
    (void)state;
    struct run run = run_of(2, 2);
    offload_to(&run, SIFR_ON_DISK, SIFR_ON_DISK);
    run.odd_rank = 1;
    run.alone = true;
    expect_refused(run, SIFR_CONFIG, "calls create of trainer 1 with other values");
}

#define WITH_FOLDERS(test) cmocka_unit_test_setup_teardown(test, open_folders, close_folders)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FOLDERS(test_same_bits_over_placements_stages_and_ranks),
        WITH_FOLDERS(test_same_bits_with_servers_pipelines_and_optimizers),
        WITH_FOLDERS(test_state_on_the_host),
        WITH_FOLDERS(test_activations_on_the_host),
        WITH_FOLDERS(test_a_gradient_function_keeps_sums_on_the_device),
        WITH_FOLDERS(test_parameters_are_read_and_written),
        WITH_FOLDERS(test_checkpoints_do_not_depend_on_the_placement),
        WITH_FOLDERS(test_a_program_stays_below_its_limit),
        WITH_FOLDERS(test_wrong_settings_are_refused),
        WITH_FOLDERS(test_an_older_program),
        WITH_FOLDERS(test_a_missing_folder_fails_all_ranks),
        WITH_FOLDERS(test_ranks_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
