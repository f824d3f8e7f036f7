/* Metrics on a disk that is full for a while: records are lost with a warning, and the run
 * continues. A resumed run reports missing records. */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "train/scratch.h"
#include "train/run/line_file.h"
#include "train/run/metrics.h"

enum { SAID_BYTES = 2048 };

/* Limit the size of files to `bytes`: a growing file then fails as on a full disk. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static off_t size_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_size;
}

static enum status write_step(struct metrics *metrics, int64_t number)
{
    static const struct footprint_worst held = {0};
    struct trainer_step step = {.step = number, .loss = 2.5, .loss_scale = NAN, .held = &held};
    return metrics_step(metrics, &step, NULL);
}

static enum status write_sample(struct metrics *metrics, int64_t number)
{
    struct trainer_sample sample = {
        .step = number, .prompt = "The", .text = "cat", .text_bytes = 3};
    return metrics_sample(metrics, &sample);
}

static void keep_lines(void *user, enum log_level level, const char *line)
{
    char *said = user;
    size_t used = strlen(said);
    (void)level;
    snprintf(said + used, SAID_BYTES - used, "%s\n", line);
}

static void test_a_full_disk_costs_only_records(void **state)
{
    struct scratch s;
    struct metrics *metrics;
    struct env env;
    char said[SAID_BYTES] = "", *text;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    assert_ok(env_create(&env, keep_lines, said, LOG_INFO, 1));
    assert_ok(metrics_create(&env, s.folder, 0, 0, "train: {}", 16, NULL, &metrics));
    const char *path = scratch_path(&s, "metrics.jsonl");
    assert_ok(write_step(metrics, 1));
    off_t whole = size_of(path);

    limit_files((rlim_t)whole + 20); /* room for part of the next line */
    assert_ok(write_step(metrics, 2));
    assert_non_null(strstr(said, "THE METRICS OF STEP 2 ARE NOT WRITTEN: File too large"));
    limit_files(1);
    assert_ok(write_step(metrics, 3));
    said[0] = 0;
    assert_ok(write_step(metrics, 4));
    assert_string_equal(said, ""); /* reported once */
    assert_int_equal(size_of(path), whole);

    limit_files(RLIM_INFINITY);
    assert_ok(write_step(metrics, 5));
    assert_non_null(strstr(said, "metrics are written again from step 5 on; 3 records are missing "
                                 "in metrics.jsonl\n"));
    said[0] = 0;
    assert_ok(write_step(metrics, 6));
    assert_string_equal(said, "");
    metrics_destroy(metrics);
    assert_string_equal(log_first_error(env.log), "");
    assert_ok(file_read(&env, path, 1 << 16, &text, &bytes));
    assert_ptr_equal(strstr(text + whole, "{\"step\":5,"), text + whole);
    assert_non_null(strstr(text, "\n{\"step\":6,"));
    mem_free(&env, text);
    bool ours = false;
    assert_ok(line_file_is_ours(&env, path, &ours));
    assert_true(ours);
    env_destroy(&env);
    scratch_close(&s);
}

/* A file whose record was written says nothing about another file whose record was lost. */
static void test_every_file_counts_its_own_lost_records(void **state)
{
    struct scratch s;
    struct metrics *metrics;
    struct env env;
    char said[SAID_BYTES] = "";
    (void)state;
    scratch_open(&s);
    assert_ok(env_create(&env, keep_lines, said, LOG_INFO, 1));
    assert_ok(metrics_create(&env, s.folder, 0, 0, "train: {}", 16, NULL, &metrics));
    for (int64_t step = 1; step <= 20; step++) /* until it is the largest file */
        assert_ok(write_step(metrics, step));

    limit_files((rlim_t)size_of(scratch_path(&s, "metrics.jsonl")) + 20);
    assert_ok(write_step(metrics, 21));
    assert_ok(write_sample(metrics, 21)); /* there is room for this one */
    assert_int_not_equal(size_of(scratch_path(&s, "samples.jsonl")), 0);
    assert_null(strstr(said, "written again"));
    limit_files(1);
    assert_ok(write_sample(metrics, 22));
    assert_non_null(strstr(said, "THE TEXT SAMPLES OF STEP 22 ARE NOT WRITTEN: File too large"));
    assert_non_null(strstr(said, "THE TENSORBOARD EVENTS OF STEP 22 "));
    assert_ok(write_step(metrics, 23));

    said[0] = 0;
    limit_files(RLIM_INFINITY);
    assert_ok(write_sample(metrics, 24));
    assert_non_null(strstr(said, "text samples are written again from step 24 on; 1 record is "
                                 "missing in samples.jsonl\n"));
    assert_non_null(
        strstr(said, "TensorBoard events are written again from step 24 on; 2 records "));
    assert_null(strstr(said, "metrics are written again"));
    assert_ok(write_step(metrics, 24));
    assert_non_null(strstr(said, "metrics are written again from step 24 on; 2 records are missing "
                                 "in metrics.jsonl\n"));
    metrics_destroy(metrics);
    env_destroy(&env);
    scratch_close(&s);
}

/* The message of a run that resumes after step 12 about the file it finds. */
static void expect_missing(const char *content, const char *steps)
{
    struct scratch s;
    struct metrics *metrics;
    struct env env;
    char said[SAID_BYTES] = "", wanted[128];
    scratch_open(&s);
    if (content != NULL)
        scratch_text(&s, "metrics.jsonl", content);
    assert_ok(env_create(&env, keep_lines, said, LOG_INFO, 1));
    assert_ok(metrics_create(&env, s.folder, 12, 0, "train: {}", 16, NULL, &metrics));
    metrics_destroy(metrics);
    snprintf(wanted, sizeof wanted, "metrics.jsonl has no record of %s: ", steps);
    if (*steps)
        assert_ptr_equal(strstr(said, wanted), said);
    else
        assert_string_equal(said, "");
    env_destroy(&env);
    scratch_close(&s);
}

static void test_steps_without_a_record_are_reported(void **state)
{
    (void)state;
    expect_missing("{\"step\":11}\n{\"step\":12}\n", "");
    expect_missing("{\"step\":11}\n{\"step\":12}\n{\"step\":13}\n{\"st", "");
    expect_missing("{\"step\":11}\n{\"step\":12}", "");
    expect_missing("{\"step\":12}\n{\"step\":13,\"loss", "");
    expect_missing("{\"step\":11}\n{\"step\":12,\"loss", "step 12");
    expect_missing("{\"step\":9}\n{\"step\":13}\n", "steps 10 to 12");
    expect_missing("", "steps 1 to 12");
    expect_missing(NULL, "steps 1 to 12");
}

/* Samples are not taken after every step, so only a missing file proves that some are lost. */
static void test_a_missing_file_of_samples_is_reported(void **state)
{
    static const struct {
        const char *samples; /* NULL: there is no file */
        int64_t sampled;
        bool told;
    } cases[] = {
        {NULL, 10, true}, {NULL, 0, false}, {"", 10, false}, {"{\"step\":5}\n", 10, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scratch s;
        struct metrics *metrics;
        struct env env;
        char said[SAID_BYTES] = "";
        scratch_open(&s);
        scratch_text(&s, "metrics.jsonl", "{\"step\":12}\n");
        if (cases[i].samples)
            scratch_text(&s, "samples.jsonl", cases[i].samples);
        assert_ok(env_create(&env, keep_lines, said, LOG_INFO, 1));
        for (int again = 0; again < 2; again++) { /* reported once: after that the file exists */
            assert_ok(metrics_create(&env, s.folder, 12, cases[i].sampled, "train: {}", 16, NULL,
                                     &metrics));
            metrics_destroy(metrics);
            if (cases[i].told && !again)
                assert_non_null(
                    strstr(said, "samples.jsonl': if the run made text samples up to step 10, "));
            else
                assert_string_equal(said, "");
            said[0] = 0;
        }
        env_destroy(&env);
        scratch_close(&s);
    }
}

/* A step of a SARS model: one object in the record, and one curve for each figure and layer. With
 * many layers the record is long, and still nothing is allocated. */
static void test_routing_is_recorded(void **state)
{
    enum { LAYERS = 200, WIDTH = 1, PART = SARS_KINDS * (2 * WIDTH + 1) };
    static const struct model_config model = {
        .arch = MODEL_SARS, .layers = LAYERS, .width = WIDTH, .sars = {.meta_weight = 1}};
    static const struct footprint_worst held = {0};
    static const char *const tags[] = {"sars/meta_loss", "sars/meta_norm", "sars/gated",
                                       "sars/active/layer_0", "sars/goodness/layer_199"};
    static float statistic[LAYERS * PART];
    struct scratch s;
    struct metrics *metrics;
    struct routing_report *routing;
    struct path_list files;
    char *text;
    size_t bytes;
    (void)state;
    for (int i = 0; i < LAYERS * PART; i++)
        statistic[i] = 1.0f / (float)(3 + i);
    scratch_open(&s);
    assert_ok(routing_create(&s.env, &model, &routing));
    routing_read(routing, statistic, 7);
    assert_ok(metrics_create(&s.env, s.folder, 0, 0, "train: {}", 16, routing, &metrics));
    const struct trainer_step step = {.step = 1,
                                      .loss = 2.5,
                                      .loss_scale = NAN,
                                      .held = &held,
                                      .routing = routing,
                                      .meta_norm = 0.5};
    assert_ok(metrics_step(metrics, &step, NULL)); /* the events file may grow its buffer once */
    mem_fail_at(s.env.mem, 1);
    assert_ok(metrics_step(metrics, &step, NULL));
    mem_fail_at(s.env.mem, 0);
    metrics_destroy(metrics);

    assert_ok(file_read(&s.env, scratch_path(&s, "metrics.jsonl"), 1 << 20, &text, &bytes));
    assert_non_null(strstr(text, ",\"sars\":{\"meta_loss\":"));
    assert_non_null(strstr(text, ",\"meta_norm\":0.5,\"active\":"));
    assert_non_null(strstr(text, ",\"gated\":0,\"layers\":{\"active\":["));
    mem_free(&s.env, text);
    assert_ok(path_glob(&s.env, scratch_path(&s, "events.*"), &files));
    assert_int_equal(files.count, 1);
    assert_ok(file_read(&s.env, files.paths[0], 1 << 20, &text, &bytes));
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        assert_non_null(memmem(text, bytes, tags[i], strlen(tags[i])));
    mem_free(&s.env, text);
    path_list_free(&s.env, &files);
    routing_destroy(routing);
    scratch_close(&s);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN); /* as the command does */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_full_disk_costs_only_records),
        cmocka_unit_test(test_every_file_counts_its_own_lost_records),
        cmocka_unit_test(test_steps_without_a_record_are_reported),
        cmocka_unit_test(test_a_missing_file_of_samples_is_reported),
        cmocka_unit_test(test_routing_is_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
