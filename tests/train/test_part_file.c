#include "train/scratch.h"
#include "train/part_file.h"

static void expect_content(struct scratch *s, const char *path, const char *wanted)
{
    char *text;
    size_t bytes;
    assert_int_equal(file_read(&s->env, path, 1000, &text, &bytes), STATUS_OK);
    assert_string_equal(text, wanted);
    mem_free(&s->env, text);
}

static void appears_whole_when_committed(void **state)
{
    struct scratch s;
    struct part_file *file;
    (void)state;
    scratch_open(&s);
    const char *path = scratch_text(&s, "a", "old");
    assert_int_equal(part_file_create(&s.env, path, &file), STATUS_OK);
    assert_int_equal(part_file_reserve(file, 8), STATUS_OK);
    assert_int_equal(part_file_write(file, 4, "5678", 4), STATUS_OK);
    assert_int_equal(part_file_write(file, 0, "1234", 4), STATUS_OK);
    expect_content(&s, path, "old");
    assert_int_equal(part_file_commit(file), STATUS_OK);
    part_file_destroy(file);
    expect_content(&s, path, "12345678");
    scratch_path(&s, "a.partial");
    assert_false(file_exists(s.path));
    scratch_close(&s);
}

static void leaves_nothing_when_given_up(void **state)
{
    struct scratch s;
    struct part_file *file;
    (void)state;
    scratch_open(&s);
    assert_int_equal(part_file_create(&s.env, scratch_path(&s, "a"), &file), STATUS_OK);
    assert_int_equal(part_file_write(file, 0, "1234", 4), STATUS_OK);
    part_file_destroy(file);
    assert_true(dir_is_empty(s.folder));
    scratch_close(&s);
}

static void names_what_it_cannot_create(void **state)
{
    struct scratch s;
    struct part_file *file;
    (void)state;
    scratch_open(&s);
    const char *path = scratch_path(&s, "none/a");
    assert_int_equal(part_file_create(&s.env, path, &file), STATUS_IO);
    scratch_expect(&s, path);
    scratch_close(&s);
}

static void unwinds_from_every_failed_allocation(void **state)
{
    struct scratch s;
    struct part_file *file;
    (void)state;
    scratch_open(&s);
    for (int n = 1; n <= 3; n++) {
        mem_fail_at(s.env.mem, n);
        assert_int_equal(part_file_create(&s.env, scratch_path(&s, "a"), &file), STATUS_MEMORY);
        assert_int_equal(mem_total(s.env.mem), 0);
    }
    mem_fail_at(s.env.mem, 0);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appears_whole_when_committed),
        cmocka_unit_test(leaves_nothing_when_given_up),
        cmocka_unit_test(names_what_it_cannot_create),
        cmocka_unit_test(unwinds_from_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
