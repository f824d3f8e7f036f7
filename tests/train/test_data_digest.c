/* Digests of data: a change of any byte is found in data that is hashed whole, and a change in any
 * sample of larger data. Different file times alone are not a difference. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "train/data/data_digest.h"
#include "train/scratch.h"

enum { BYTES = 12 << 20, KIND = 3 };

static uint8_t *data;

static struct data_digest take(const char *path, size_t cut, uint64_t whole)
{
    const struct data_span pieces[] = {{data, cut, path}, {data + cut, BYTES - cut, path}};
    struct data_digest one, all = {0};
    data_digest_compute(cut ? pieces : pieces + 1, cut ? 2 : 1, whole, &one);
    data_digest_join(&all, &one, KIND);
    return all;
}

static void expect(struct scratch *s, const struct data_digest *there,
                   const struct data_digest *here, enum data_verdict verdict, const char *words)
{
    struct text text;
    text_init(&text, &s->env);
    assert_int_equal(data_digest_compare(there, here, &text), verdict);
    assert_string_equal(text_string(&text), words);
    text_free(&text);
}

static void begin(struct scratch *s)
{
    scratch_open(s);
    scratch_text(s, "a", "");
    data = malloc(BYTES);
    assert_non_null(data);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
}

static void end(struct scratch *s)
{
    free(data);
    scratch_close(s);
}

static void test_every_byte_of_small_data_counts(void **state)
{
    struct scratch s;
    (void)state;
    begin(&s);
    struct data_digest there = take(s.path, 0, DATA_DIGEST_WHOLE), here;
    for (size_t at = 5; at < BYTES; at += BYTES / 7) {
        data[at] ^= 1;
        here = take(s.path, 0, DATA_DIGEST_WHOLE);
        expect(&s, &there, &here, DATA_DIFFERS, "1 file, 12.0 MiB hashed whole");
        data[at] ^= 1;
    }
    here = take("elsewhere", 0, DATA_DIGEST_WHOLE);
    expect(&s, &there, &here, DATA_SAME, "1 file, 12.0 MiB hashed whole");
    here = take(s.path, 1000001, DATA_DIGEST_WHOLE); /* the same data, cut into files differently */
    expect(&s, &there, &here, DATA_SAME, "2 files, 12.0 MiB hashed whole");
    end(&s);
}

#define LOOKED "1 file, 12.0 MiB by size and 2048 samples of 4 KiB"

static void test_large_data_is_sampled(void **state)
{
    const struct timespec times[2] = {{1000, 0}, {1000, 0}};
    struct scratch s;
    (void)state;
    begin(&s);
    struct data_digest there = take(s.path, 0, BYTES - 1), here;
    size_t gap = (BYTES - 4096) / 2047 + 1; /* distance between samples */
    data[7 * gap + 10] ^= 1;                /* inside a sample */
    here = take(s.path, 0, BYTES - 1);
    expect(&s, &there, &here, DATA_DIFFERS, LOOKED);
    data[7 * gap + 10] ^= 1;
    here = take(s.path, 1000001, BYTES - 1);
    here.times = there.times;
    expect(&s, &there, &here, DATA_SAME, "2 files, 12.0 MiB by size and 2048 samples of 4 KiB");

    /* Between two samples: only the second, denser set of samples finds it, and it is read only if
     * file times have changed. */
    size_t between = 7 * gap + 4096 + (gap - 4096) / 2;
    data[between] ^= 1;
    here = take(s.path, 0, BYTES - 1);
    expect(&s, &there, &here, DATA_SAME, LOOKED);
    assert_int_equal(utimensat(AT_FDCWD, s.path, times, 0), 0);
    here = take(s.path, 0, BYTES - 1);
    expect(&s, &there, &here, DATA_DIFFERS,
           LOOKED ", and 8192 more because the times of files have changed");
    data[between] ^= 1;
    here = take(s.path, 0, BYTES - 1);
    expect(&s, &there, &here, DATA_SAME,
           LOOKED ", and 8192 more because the times of files have changed");
    end(&s);
}

static void test_incomparable_digests_are_unknown(void **state)
{
    struct scratch s;
    struct data_digest none = {0}, other = {0};
    (void)state;
    begin(&s);
    struct data_digest there = take(s.path, 0, DATA_DIGEST_WHOLE);
    expect(&s, &none, &there, DATA_UNKNOWN, "");
    expect(&s, &there, &none, DATA_UNKNOWN, "");
    struct data_digest one = data_digest_hashed(1, BYTES, 1);
    data_digest_join(&other, &one, KIND + 1);
    expect(&s, &there, &other, DATA_UNKNOWN, "");
    end(&s);
}

static struct data_digest digest_of(struct scratch *s, const struct data_config *config,
                                    enum data_part part)
{
    struct data_digest digest;
    assert_int_equal(data_digest_files(&s->env, config, part, &digest), STATUS_OK);
    return digest;
}

/* The files of a configuration: those to train on apart from those held out. */
static void test_files_of_a_configuration(void **state)
{
    struct scratch s;
    struct data_digest digest;
    char pattern[128], val[128];
    (void)state;
    scratch_open(&s);
    snprintf(val, sizeof val, "%s", scratch_text(&s, "val", "held out"));
    scratch_text(&s, "a.txt", "one");
    scratch_text(&s, "b.txt", "three");
    snprintf(pattern, sizeof pattern, "%s", scratch_path(&s, "?.txt"));
    struct data_config config = {.path = pattern, .val = val};
    struct data_digest train = digest_of(&s, &config, DATA_PART_TRAINING);
    struct data_digest held_out = digest_of(&s, &config, DATA_PART_HELD_OUT);
    assert_true(train.files == 2 && train.whole_bytes == 8 && held_out.files == 1);
    scratch_text(&s, "val", "held OUT");
    assert_true(digest_of(&s, &config, DATA_PART_TRAINING).hash == train.hash);
    assert_true(digest_of(&s, &config, DATA_PART_HELD_OUT).hash != held_out.hash);
    scratch_text(&s, "b.txt", "THREE");
    assert_true(digest_of(&s, &config, DATA_PART_TRAINING).hash != train.hash);
    config.val = "0.1"; /* of the training data */
    assert_int_equal(digest_of(&s, &config, DATA_PART_HELD_OUT).files, 0);
    config.val = "/nonexistent";
    assert_int_equal(data_digest_files(&s.env, &config, DATA_PART_HELD_OUT, &digest), STATUS_IO);
    for (int at = 1; at <= 2; at++) {
        mem_fail_at(s.env.mem, at);
        assert_int_equal(data_digest_files(&s.env, &config, DATA_PART_TRAINING, &digest),
                         STATUS_MEMORY);
    }
    mem_fail_at(s.env.mem, 0);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte_of_small_data_counts),
        cmocka_unit_test(test_large_data_is_sampled),
        cmocka_unit_test(test_incomparable_digests_are_unknown),
        cmocka_unit_test(test_files_of_a_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
