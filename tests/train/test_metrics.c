/* Metrics on a disk that is full for a while: records are lost, loudly, and the run goes on. */
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include "train/scratch.h"
#include "train/metrics.h"

/* No file may grow beyond `bytes`: what a full disk is to one that grows. */
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

static void keep_line(void *user, enum log_level level, const char *line)
{
    (void)level;
    snprintf(user, 256, "%s", line);
}

static void a_full_disk_costs_records_only(void **state)
{
    struct scratch s;
    struct metrics *metrics;
    struct env env;
    struct trainer_sample sample = {.step = 3, .prompt = "The", .text = "cat", .text_bytes = 3};
    char said[256] = "", *text;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    assert_ok(env_create(&env, keep_line, said, LOG_INFO, 1));
    assert_ok(metrics_create(&env, s.folder, 0, "train: {}", 16, &metrics));
    const char *path = scratch_path(&s, "metrics.jsonl");
    assert_ok(write_step(metrics, 1));
    off_t whole = size_of(path);

    limit_files((rlim_t)whole + 20); /* there is room for a part of the next line */
    assert_ok(write_step(metrics, 2));
    assert_non_null(strstr(said, "THE METRICS OF STEP 2 ARE NOT WRITTEN: File too large"));
    said[0] = 0;
    assert_ok(write_step(metrics, 3));
    limit_files(1);
    assert_ok(metrics_sample(metrics, &sample));
    assert_string_equal(said, ""); /* once */
    assert_int_equal(size_of(path), whole);

    limit_files(RLIM_INFINITY);
    assert_ok(write_step(metrics, 4));
    assert_non_null(strstr(said, "written again from step 4 on; 3 records are missing"));
    said[0] = 0;
    assert_ok(write_step(metrics, 5));
    assert_string_equal(said, "");
    metrics_destroy(metrics);
    assert_string_equal(log_first_error(env.log), "");
    assert_ok(file_read(&env, path, 1 << 16, &text, &bytes));
    assert_ptr_equal(strstr(text + whole, "{\"step\":4,"), text + whole);
    assert_non_null(strstr(text, "\n{\"step\":5,"));
    mem_free(&env, text);
    env_destroy(&env);
    scratch_close(&s);
}

int main(void)
{
    signal(SIGXFSZ, SIG_IGN); /* as the command does */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_disk_costs_records_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
