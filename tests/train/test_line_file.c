/* Appending lines, cutting a file back to a step, renaming an earlier file, finding the last
 * step. */
#include <errno.h>
#include <unistd.h>
#include "train/scratch.h"
#include "train/run/line_file.h"

static void test_lines_are_appended_at_once(void **state)
{
    struct scratch s;
    struct line_file *file;
    char *text;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    const char *path = scratch_text(&s, "m.jsonl", "0\n");
    assert_int_equal(line_file_open(&s.env, path, &file), STATUS_OK);
    assert_int_equal(line_file_add(file, "{\"a\":1}\n", 8), STATUS_OK);
    assert_int_equal(line_file_add(file, "2\n", 2), STATUS_OK);
    assert_int_equal(file_read(&s.env, path, 100, &text, &bytes), STATUS_OK);
    assert_string_equal(text, "0\n{\"a\":1}\n2\n");
    mem_free(&s.env, text);
    line_file_close(file);
    scratch_close(&s);
}

static void test_failures_name_the_file(void **state)
{
    struct scratch s;
    struct line_file *file;
    (void)state;
    scratch_open(&s);
    assert_int_equal(line_file_open(&s.env, "/nonexistent/m", &file), STATUS_IO);
    scratch_expect(&s, "/nonexistent/m");
    if (file_exists("/dev/full")) {
        assert_int_equal(line_file_open(&s.env, "/dev/full", &file), STATUS_OK);
        assert_int_equal(line_file_add(file, "1\n", 2), STATUS_IO);
        assert_int_equal(errno, ENOSPC);
        line_file_close(file);
    }
    mem_fail_at(s.env.mem, 1);
    assert_int_equal(line_file_open(&s.env, scratch_path(&s, "m"), &file), STATUS_MEMORY);
    mem_fail_at(s.env.mem, 0);
    scratch_close(&s);
}

static void test_lines_of_later_steps_are_dropped(void **state)
{
    static const struct {
        const char *before, *after; /* before and after a cut back to step 2 */
        int64_t last;
    } cases[] = {
        {"", "", 0},
        {"{\"step\":1}\n{\"step\":2,\"a\":3}\n", "{\"step\":1}\n{\"step\":2,\"a\":3}\n", 2},
        {"{\"step\":1}\n{\"step\":3}\n{\"step\":4}\n", "{\"step\":1}\n", 1},
        {"{\"step\":2}\n{\"step\":2", "{\"step\":2}\n", 2},
        {"{\"step\":22}\n", "", 0},
        /* complete except for the newline */
        {"{\"step\":1}\n{\"step\":2}", "{\"step\":1}\n{\"step\":2}\n", 2},
        {"{\"step\":2}", "{\"step\":2}\n", 2},
        {"{\"step\":2}\n{\"step\":3}", "{\"step\":2}\n", 2},
        {"{\"step\":1}\nx\n{\"step\":2}", "{\"step\":1}\nx\n{\"step\":2}\n", 2},
        /* lines that are not records: at the end, and before later records */
        {"other\n{\"step\":3", "other\n", 0},
        {"{\"step\":1}\n{\"step\":2}\nother\n", "{\"step\":1}\n{\"step\":2}\nother\n", 2},
        {"{\"step\":1}\n{\"step\":2,\"a\n\n[]\n{\"step\":3}\n",
         "{\"step\":1}\n{\"step\":2,\"a\n\n[]\n", 1},
        {"{\"step\":1}\n{\"step\":2}{\"step\":2}\n", "{\"step\":1}\n{\"step\":2}{\"step\":2}\n", 1},
        {"{\"step\":1,\"a\":\"\\u0000\"}\n", "{\"step\":1,\"a\":\"\\u0000\"}\n", 1},
        /* JSON before the last record stays, even with a later step */
        {"{\"note\":0}\n{\"step\":2}\n", "{\"note\":0}\n{\"step\":2}\n", 2},
        {"{\"step\":91}\n{\"step\":2}\n", "{\"step\":91}\n{\"step\":2}\n", 2},
        /* JSON that is not a record always stays */
        {"{\"step\":2}\n{\"note\":0}", "{\"step\":2}\n{\"note\":0}\n", 2},
        {"{\"step\":3}\n[]\n{\"step\":4}\n[1]", "[]\n[1]\n", 0},
        {"{\"step\":2}\n{\"step\":3}\n{\"step\":-1}\n{\"step\":\"7\"}\n{\"st",
         "{\"step\":2}\n{\"step\":-1}\n{\"step\":\"7\"}\n", 2},
        {"{\"step\": 9}\n{\"step\":2}\n{\"step\": 9}\n",
         "{\"step\": 9}\n{\"step\":2}\n{\"step\": 9}\n", 2},
    };
    struct scratch s;
    char *text;
    size_t bytes;
    int64_t last = 7;
    (void)state;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = scratch_text(&s, "m.jsonl", cases[i].before);
        assert_int_equal(line_file_cut(&s.env, path, 2, &last), STATUS_OK);
        assert_int_equal(last, cases[i].last);
        assert_int_equal(file_read(&s.env, path, 100, &text, &bytes), STATUS_OK);
        assert_string_equal(text, cases[i].after);
        mem_free(&s.env, text);
    }
    assert_int_equal(line_file_cut(&s.env, scratch_path(&s, "none"), 2, &last), STATUS_OK);
    assert_int_equal(last, 0);
    assert_false(file_exists(s.path));
    scratch_close(&s);
}

/* The file holds exactly these bytes (0 bytes: it does not exist). Removes it. */
static void expect_content(struct scratch *s, const char *name, const void *content, size_t bytes)
{
    char *text;
    size_t found;
    const char *path = scratch_path(s, name);
    assert_int_equal(file_exists(path), bytes > 0);
    if (bytes == 0)
        return;
    assert_int_equal(file_read(&s->env, path, 1000, &text, &found), STATUS_OK);
    assert_int_equal(found, bytes);
    assert_memory_equal(text, content, bytes);
    mem_free(&s->env, text);
    unlink(path);
}

/* Only records of steps that the run repeats and an incomplete last record are dropped: notes and
 * damaged lines of any kind stay where they are. */
static void test_other_lines_stay(void **state)
{
    static const struct {
        const char *before, *after; /* before and after a cut back to step 2 */
    } cases[] = {
        /* between records */
        {"{\"step\":1}\n{\"step\":2,\"a\n{\"step\":2}\n",
         "{\"step\":1}\n{\"step\":2,\"a\n{\"step\":2}\n"},
        {"x\n{\"a\":0}\ny\n\n{\"step\":2}\n", "x\n{\"a\":0}\ny\n\n{\"step\":2}\n"},
        {"{\"step\":7x}\n{\"step\":2}\n", "{\"step\":7x}\n{\"step\":2}\n"},
        /* after the last record */
        {"{\"step\":2}\n{\"step\":3}\n{\"step\":4", "{\"step\":2}\n"},
        {"{\"step\":2}\n{\"step\":3}\n\001\002", "{\"step\":2}\n\001\002\n"},
        {"{\"step\":2}\nmy own note", "{\"step\":2}\nmy own note\n"},
        {"{\"step\":2}\n{\"note\":\"a", "{\"step\":2}\n{\"note\":\"a\n"},
        {"{\"step\":2}{\"step\":3}", "{\"step\":2}{\"step\":3}\n"}, /* more than one record */
        {"{\"step\":2}{\"step\":3,\"a", "{\"step\":2}{\"step\":3,\"a\n"},
        {"{\"step\":2}\n{\"step\":3}x", "{\"step\":2}\n{\"step\":3}x\n"},
        {"{\"step\":2}\n{\"step\":3,my own note", "{\"step\":2}\n{\"step\":3,my own note\n"},
        {"{\"step\":2}\n{\"step\":3,\"a\n{\"step\":4}\n\nx\n{\"st",
         "{\"step\":2}\n{\"step\":3,\"a\n\nx\n"},
        /* no record stays */
        {"y\n{\"step\":3}\n", "y\n"},
    };
    struct scratch s;
    int64_t last;
    (void)state;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_text(&s, "m.jsonl", cases[i].before);
        assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_OK);
        assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_OK); /* changes nothing */
        expect_content(&s, "m.jsonl", cases[i].after, strlen(cases[i].after));
    }
    static const char zeros[] = "{\"step\":1}\n\0\0\0\0\n{\"step\":2}\n{\"step\":3}\n";
    scratch_write(&s, "m.jsonl", zeros, sizeof zeros - 1);
    assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_OK);
    assert_int_equal(last, 2);
    expect_content(&s, "m.jsonl", zeros, sizeof zeros - 1 - 11);
    scratch_close(&s);
}

/* If the file cannot be cut, it is unchanged. */
static void test_a_failed_cut_changes_nothing(void **state)
{
    static const char content[] = "{\"step\":2}\n{\"step\":3}\nx\n";
    struct scratch s;
    int64_t last;
    (void)state;
    scratch_open(&s);
    for (int n = 1; n <= 8; n++) {
        scratch_text(&s, "m.jsonl", content);
        mem_fail_at(s.env.mem, n);
        enum status st = line_file_cut(&s.env, s.path, 2, &last);
        mem_fail_at(s.env.mem, 0);
        assert_true(st == STATUS_MEMORY || n > 4);
        if (st != STATUS_OK)
            expect_content(&s, "m.jsonl", content, strlen(content));
    }
    scratch_close(&s);
}

/* A record may be cut off at any byte. */
static void test_an_incomplete_record_is_dropped(void **state)
{
    static const char record[] =
        "{\"step\":3,\"loss\":2.5e-07,\"mfu\":null,\"skipped\":true,\"comm\":{}"
        ",\"text\":\"\\u001b\\\" \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\"}";
    struct scratch s;
    int64_t last;
    char content[200];
    (void)state;
    scratch_open(&s);
    for (int bytes = 1; bytes <= (int)strlen(record); bytes++) {
        snprintf(content, sizeof content, "{\"step\":2}\n%.*s", bytes, record);
        scratch_text(&s, "m.jsonl", content);
        assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_OK);
        expect_content(&s, "m.jsonl", "{\"step\":2}\n", 11);
    }
    scratch_close(&s);
}

static void test_an_earlier_file_is_set_aside(void **state)
{
    struct scratch s;
    char *text;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    assert_int_equal(line_file_set_aside(&s.env, scratch_path(&s, "m.jsonl")), STATUS_OK);
    scratch_text(&s, "m.jsonl", "");
    assert_int_equal(line_file_set_aside(&s.env, s.path), STATUS_OK);
    assert_true(file_exists(s.path)); /* an empty file keeps its name */
    for (int n = 1; n <= 3; n++) {
        char content[2] = {(char)('0' + n)};
        scratch_text(&s, "m.jsonl", content);
        assert_int_equal(line_file_set_aside(&s.env, s.path), STATUS_OK);
        assert_false(file_exists(s.path));
    }
    assert_int_equal(file_read(&s.env, scratch_path(&s, "m.jsonl.2"), 100, &text, &bytes),
                     STATUS_OK);
    assert_string_equal(text, "2");
    mem_free(&s.env, text);
    scratch_text(&s, "m.jsonl", "4");
    mem_fail_at(s.env.mem, 1);
    assert_int_equal(line_file_set_aside(&s.env, s.path), STATUS_MEMORY);
    mem_fail_at(s.env.mem, 0);
    assert_true(file_exists(s.path));
    scratch_close(&s);
}

/* The record of step 2 gets the missing key, and later lines follow the new file. */
static void test_a_record_is_extended(void **state)
{
    static const char added[] = ",\"val\":{\"b\":1}";
    static const struct {
        const char *before, *after;
    } cases[] = {
        {"{\"step\":1}\n{\"step\":2,\"a\":{}}\n",
         "{\"step\":1}\n{\"step\":2,\"a\":{},\"val\":{\"b\":1}}\nx\n"},
        {"{\"step\":2} \nmy note\n", "{\"step\":2,\"val\":{\"b\":1}} \nmy note\nx\n"},
        /* it is there already, or there is no such record */
        {"{\"step\":2,\"val\":{}}\n", "{\"step\":2,\"val\":{}}\nx\n"},
        {"{\"step\":1}\n{\"step\":3}\n", "{\"step\":1}\n{\"step\":3}\nx\n"},
        {"{\"step\":1}\n{\"step\":2,\"a\n", "{\"step\":1}\n{\"step\":2,\"a\nx\n"},
        {"", "x\n"},
    };
    struct scratch s;
    struct line_file *file;
    struct text text;
    (void)state;
    scratch_open(&s);
    text_init(&text, &s.env);
    text_add(&text, added);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = scratch_text(&s, "m.jsonl", cases[i].before);
        assert_int_equal(line_file_open(&s.env, path, &file), STATUS_OK);
        assert_int_equal(line_file_extend(file, 2, ",\"val\":", &text), STATUS_OK);
        assert_int_equal(line_file_extend(file, 2, ",\"val\":", &text), STATUS_OK);
        assert_int_equal(line_file_add(file, "x\n", 2), STATUS_OK);
        line_file_close(file);
        expect_content(&s, "m.jsonl", cases[i].after, strlen(cases[i].after));
    }
    text_free(&text);
    scratch_close(&s);
}

static bool file_holds(struct scratch *s, const char *content)
{
    char *text;
    size_t bytes;
    assert_int_equal(file_read(&s->env, scratch_path(s, "m.jsonl"), 1000, &text, &bytes),
                     STATUS_OK);
    bool equal = strcmp(text, content) == 0;
    mem_free(&s->env, text);
    return equal;
}

/* The file is the old one or the new one. */
static void test_an_extension_may_fail(void **state)
{
    static const char record[] = "{\"step\":2}\n", more[] = "{\"step\":2,\"val\":1}\n";
    struct scratch s;
    struct line_file *file;
    struct text text;
    enum status st = STATUS_MEMORY;
    int failed_old = 0;
    (void)state;
    scratch_open(&s);
    text_init(&text, &s.env);
    text_add(&text, ",\"val\":1");
    scratch_text(&s, "m.jsonl", record);
    assert_int_equal(line_file_open(&s.env, s.path, &file), STATUS_OK);
    for (int at = 1; st == STATUS_MEMORY; at++) {
        scratch_text(&s, "m.jsonl", record);
        mem_fail_at(s.env.mem, at);
        st = line_file_extend(file, 2, ",\"val\":", &text);
        mem_fail_at(s.env.mem, 0);
        bool old = file_holds(&s, record);
        assert_true(st == STATUS_OK ? !old : old || file_holds(&s, more));
        failed_old += old;
    }
    assert_int_equal(st, STATUS_OK);
    assert_true(failed_old > 3);
    expect_content(&s, "m.jsonl", more, strlen(more));
    line_file_close(file);
    text_free(&text);
    scratch_close(&s);
}

static void test_the_last_step_is_found(void **state)
{
    static const struct {
        const char *text;
        int64_t step;
    } cases[] = {
        {"", 0},
        {"{\"step\":7}\n", 7},
        {"{\"step\":7}\n{\"step\":12,\"a\":3}\n", 12},
        {"{\"step\":7}\n{\"step\":12", 7}, /* cut off */
        {"{\"step\":12", 0},
        {"{\"step\":7}\nother\n", 0},
        {"\n", 0},
    };
    struct scratch s;
    int64_t step;
    (void)state;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = scratch_text(&s, "m.jsonl", cases[i].text);
        assert_int_equal(line_file_last(&s.env, path, &step), STATUS_OK);
        assert_int_equal(step, cases[i].step);
    }
    assert_int_equal(line_file_last(&s.env, scratch_path(&s, "none"), &step), STATUS_OK);
    assert_int_equal(step, 0);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_are_appended_at_once),
        cmocka_unit_test(test_failures_name_the_file),
        cmocka_unit_test(test_lines_of_later_steps_are_dropped),
        cmocka_unit_test(test_other_lines_stay),
        cmocka_unit_test(test_a_failed_cut_changes_nothing),
        cmocka_unit_test(test_an_incomplete_record_is_dropped),
        cmocka_unit_test(test_an_earlier_file_is_set_aside),
        cmocka_unit_test(test_a_record_is_extended),
        cmocka_unit_test(test_an_extension_may_fail),
        cmocka_unit_test(test_the_last_step_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
