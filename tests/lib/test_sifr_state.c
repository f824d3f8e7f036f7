/* Checkpoints of a program's model: resumed on any number of ranks, in the background or not, with
 * the program's own state; damage and failures. */
#include "lib_rig.h"
#include <sys/stat.h>
#include <unistd.h>

enum { STEPS = 4, TABLE = VOCAB * WIDTH };

struct state { /* of the program */
    int64_t step;
    char words[24];
};

struct run {
    struct sifr_options options;
    int ranks;
    const char *from, *to; /* resume from, save to; NULL: do not */
    int64_t until;
    float table[TABLE];
    struct state state; /* read when the run resumed */
    int64_t resumed;
    char error[512];
};

static int steps(struct sifr_context *context, struct sifr_trainer *trainer, struct run *run)
{
    struct sifr_result result = {.size = sizeof result};
    struct state state = {0};
    size_t bytes = sizeof state;
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    int64_t step = 0;
    int status = run->from ? sifr_resume(trainer, run->from, &step, &state, &bytes) : 0;
    if (sifr_rank(context) == 0) {
        run->resumed = step;
        run->state = state;
    }
    for (; status == 0 && step < run->until; step++) {
        fill_step(step, ids, labels);
        status = sifr_step_tokens(trainer, ids, labels, 1e-2, &result);
        state = (struct state){.step = step + 1, .words = "my own state"};
        if (status == 0 && run->to)
            status = sifr_checkpoint(trainer, run->to, &state, sizeof state);
    }
    return status == 0 ? sifr_checkpoint_wait(trainer) : status;
}

static int rank_main(struct sifr_context *context, void *user)
{
    struct run *run = user;
    struct sifr_model model = model_of(good_units);
    struct sifr_trainer *trainer;
    float table[TABLE];
    int status = sifr_trainer_create(context, &model, &run->options, &trainer);
    if (status != 0)
        return status;
    status = steps(context, trainer, run);
    if (status == 0)
        status = sifr_read(trainer, "table", table, TABLE);
    if (status == 0 && sifr_rank(context) == 0)
        memcpy(run->table, table, sizeof table);
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

static struct run run_of(int ranks, int stage, int64_t until)
{
    struct run run = {.options = small_options(), .ranks = ranks, .until = until};
    run.options.stage = stage;
    return run;
}

static char folder[64];
static const char *path_of(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int open_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/sifr-state-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int close_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static void resume_everywhere(enum sifr_type precision, int async)
{
    struct run whole = run_of(1, 0, STEPS), half = run_of(4, 3, STEPS / 2);
    whole.options.precision = half.options.precision = precision;
    half.options.checkpoint_async = async;
    half.to = folder;
    assert_int_equal(start(&whole), 0);
    assert_int_equal(start(&half), 0);
    for (int ranks = 1; ranks <= 4; ranks++) {
        struct run rest = run_of(ranks, ranks - 1, STEPS);
        rest.options.precision = precision;
        rest.options.pipeline = ranks == 2 ? 2 : 0;
        rest.from = folder;
        if (start(&rest) != 0)
            fail_msg("%d ranks: %s", ranks, rest.error);
        assert_int_equal(rest.resumed, STEPS / 2);
        assert_int_equal(rest.state.step, STEPS / 2);
        assert_string_equal(rest.state.words, "my own state");
        assert_memory_equal(rest.table, whole.table, sizeof whole.table);
    }
}

static void test_resume_on_any_ranks(void **state)
{
    (void)state;
    resume_everywhere(SIFR_F32, 0);
}

static void test_resume_after_background_saves(void **state)
{
    (void)state;
    resume_everywhere(SIFR_F32, 1);
}

static void test_resume_in_16_bits(void **state)
{
    (void)state;
    resume_everywhere(SIFR_BF16, 1);
    close_folder(state);
    assert_int_equal(open_folder(state), 0);
    resume_everywhere(SIFR_F16, 0);
}

/* The hooks hear of every step and of every save, in the background or not. */
struct heard {
    int steps, saves, failures;
    int64_t last;
};

static void on_step(void *user, const struct sifr_result *result)
{
    struct heard *heard = user;
    heard->steps += result->loss > 0 && result->size == sizeof *result;
}

static void on_saved(void *user, const struct sifr_saved *saved)
{
    struct heard *heard = user;
    heard->saves++;
    heard->failures += *saved->error != 0;
    heard->last = saved->step;
}

static void test_hooks_hear_of_steps_and_saves(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        struct run run = run_of(1, 0, STEPS);
        struct heard heard = {0};
        char name[16];
        snprintf(name, sizeof name, "run-%d", async);
        run.to = path_of(name);
        run.options.stepped = on_step;
        run.options.saved = on_saved;
        run.options.user = &heard;
        run.options.checkpoint_async = async;
        assert_int_equal(start(&run), 0);
        assert_int_equal(heard.steps, STEPS);
        assert_int_equal(heard.saves, STEPS);
        assert_int_equal(heard.failures, 0);
        assert_int_equal(heard.last, STEPS);
    }
}

static void test_nothing_to_resume(void **state)
{
    (void)state;
    struct run run = run_of(2, 2, 1);
    run.from = path_of("nowhere");
    run.state.step = 7;
    assert_int_equal(start(&run), 0);
    assert_int_equal(run.resumed, 0);
}

static void test_old_checkpoints_are_removed(void **state)
{
    (void)state;
    struct run run = run_of(2, 1, STEPS);
    run.to = folder;
    run.options.checkpoint_keep = 2;
    assert_int_equal(start(&run), 0);
    assert_int_not_equal(access(path_of("step-2"), F_OK), 0);
    assert_int_equal(access(path_of("step-3/COMPLETE"), F_OK), 0);
    assert_int_equal(access(path_of("step-4/program.bin"), F_OK), 0);
}

static void damage(const char *name)
{
    FILE *file = fopen(path_of(name), "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -9, SEEK_END), 0);
    fputc('!', file);
    fclose(file);
}

/* Damage to tensors or to the program's state is found; the checkpoint before is used. */
static void test_a_damaged_checkpoint_is_skipped(void **state)
{
    (void)state;
    struct run run = run_of(2, 2, STEPS), rest = run_of(3, 1, STEPS), whole = run_of(1, 0, STEPS);
    run.to = rest.from = folder;
    assert_int_equal(start(&run), 0);
    assert_int_equal(start(&whole), 0);
    damage("step-4/optimizer/momentum.safetensors");
    damage("step-3/program.bin");
    assert_int_equal(start(&rest), 0);
    assert_int_equal(rest.resumed, 2);
    assert_memory_equal(rest.table, whole.table, sizeof whole.table);
}

static void test_a_failed_save_is_reported(void **state)
{
    (void)state;
    for (int async = 0; async < 2; async++) {
        struct run run = run_of(2, 2, STEPS);
        FILE *file = fopen(path_of("file"), "w");
        assert_non_null(file);
        fclose(file);
        run.to = path_of("file"); /* not a folder */
        run.options.checkpoint_async = async;
        assert_int_equal(start(&run), SIFR_IO);
        assert_non_null(strstr(run.error, "the checkpoint of step 1 was not saved: "));
    }
}

#define WITH_FOLDER(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_FOLDER(test_resume_on_any_ranks),
        WITH_FOLDER(test_resume_after_background_saves),
        WITH_FOLDER(test_resume_in_16_bits),
        WITH_FOLDER(test_hooks_hear_of_steps_and_saves),
        WITH_FOLDER(test_nothing_to_resume),
        WITH_FOLDER(test_old_checkpoints_are_removed),
        WITH_FOLDER(test_a_damaged_checkpoint_is_skipped),
        WITH_FOLDER(test_a_failed_save_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
