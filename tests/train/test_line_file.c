#include <errno.h>
#include <unistd.h>
#include "train/scratch.h"
#include "train/run/line_file.h"

static void lines_are_there_at_once_and_stay(void **state)
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

static void failures_are_named(void **state)
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
    for (int n = 1; n <= 2; n++) {
        mem_fail_at(s.env.mem, n);
        assert_int_equal(line_file_open(&s.env, scratch_path(&s, "m"), &file), STATUS_MEMORY);
    }
    mem_fail_at(s.env.mem, 0);
    scratch_close(&s);
}

static void lines_of_later_steps_are_dropped(void **state)
{
    static const struct {
        const char *before, *after; /* of step 2 */
        int64_t last;
    } cases[] = {
        {"", "", 0},
        {"{\"step\":1}\n{\"step\":2,\"a\":3}\n", "{\"step\":1}\n{\"step\":2,\"a\":3}\n", 2},
        {"{\"step\":1}\n{\"step\":3}\n{\"step\":4}\n", "{\"step\":1}\n", 1},
        {"{\"step\":2}\n{\"step\":2", "{\"step\":2}\n", 2},
        {"{\"step\":22}\n", "", 0},
        /* whole but for the newline */
        {"{\"step\":1}\n{\"step\":2}", "{\"step\":1}\n{\"step\":2}\n", 2},
        {"{\"step\":2}", "{\"step\":2}\n", 2},
        {"{\"step\":2}\n{\"step\":3}", "{\"step\":2}\n", 2},
        {"{\"step\":1}\nx\n{\"step\":2}", "{\"step\":1}\n{\"step\":2}\n", 2},
        /* no records: at the end, and before later ones */
        {"other\n{\"step\":3", "", 0},
        {"{\"step\":1}\n{\"step\":2}\nother\n", "{\"step\":1}\n{\"step\":2}\n", 2},
        {"{\"step\":1}\n{\"step\":2,\"a\n\n[]\n{\"step\":3}\n", "{\"step\":1}\n[]\n", 1},
        {"{\"step\":1}\n{\"step\":2}{\"step\":2}\n", "{\"step\":1}\n", 1},
        {"{\"step\":1,\"a\":\"\\u0000\"}\n", "{\"step\":1,\"a\":\"\\u0000\"}\n", 1},
        /* JSON with records behind it stays, a damaged number too */
        {"{\"note\":0}\n{\"step\":2}\n", "{\"note\":0}\n{\"step\":2}\n", 2},
        {"{\"step\":91}\n{\"step\":2}\n", "{\"step\":91}\n{\"step\":2}\n", 2},
        /* and where it is no record, wherever it is */
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

struct told {
    char line[512];
    int count;
};

static void keep_told(void *user, enum log_level level, const char *line)
{
    struct told *told = user;
    if (level == LOG_WARN && ++told->count)
        snprintf(told->line, sizeof told->line, "%s", line);
}

/* The file holds these bytes; no bytes: there is none. Then it is removed. */
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

/* Lines with records behind them that are not JSON are moved, and named once; nothing else is. */
static void damaged_lines_are_named_and_moved(void **state)
{
    static const char one[] = "{\"step\":1}\n", two[] = "{\"step\":2}\n";
    static const struct {
        const char *damage;
        size_t bytes;
        const char *told;
    } cases[] = {
        {"{\"step\":2,\"a\n", 13, "line 2 of '"},
        {"\0\0\0\0\n", 5, "line 2 of '"},
        {"\n", 1, "line 2 of '"},
        {"{\"step\":7x}\n", 12, "line 2 of '"},
        {"x\n{\"a\":0}\ny\n", 12, "lines 2, 4 of '"},
        {"{\"a\":0}\n", 8, NULL},
        {"\n\n\n\n\n\n\n\n\n", 9, "lines 2, 3, 4, 5, 6, 7, 8, 9 and 1 more of '"},
    };
    struct told told = {0};
    struct scratch s;
    (void)state;
    scratch_open(&s);
    log_destroy(s.env.log);
    s.env.log = log_create(keep_told, &told, LOG_WARN);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char content[80];
        size_t bytes;
        int64_t last;
        memcpy(content, one, strlen(one));
        memcpy(content + strlen(one), cases[i].damage, cases[i].bytes);
        memcpy(content + strlen(one) + cases[i].bytes, two, strlen(two));
        scratch_write(&s, "m.jsonl", content, 2 * strlen(one) + cases[i].bytes);
        told = (struct told){0};
        for (int again = 0; again < 2; again++) {
            char *text;
            scratch_path(&s, "m.jsonl");
            assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_OK);
            assert_int_equal(last, 2);
            assert_int_equal(told.count, cases[i].told != NULL);
            assert_int_equal(file_read(&s.env, s.path, 100, &text, &bytes), STATUS_OK);
            assert_string_equal(text, strstr(cases[i].damage, "{\"a\":0}")
                                          ? "{\"step\":1}\n{\"a\":0}\n{\"step\":2}\n"
                                          : "{\"step\":1}\n{\"step\":2}\n");
            mem_free(&s.env, text);
        }
        if (cases[i].told && !(strstr(told.line, cases[i].told) && strstr(told.line, ".damaged'")))
            fail_msg("expected '%s' in '%s'", cases[i].told, told.line);
        if (strstr(cases[i].damage, "y\n"))
            expect_content(&s, "m.jsonl.damaged", "x\ny\n", 4);
        else
            expect_content(&s, "m.jsonl.damaged", cases[i].damage,
                           cases[i].told ? cases[i].bytes : 0);
    }
    for (int n = 1; n <= 8; n++) { /* where it cannot be done, the file is as it was */
        static const char content[] = "x\n{\"step\":2}\n";
        int64_t last;
        scratch_text(&s, "m.jsonl", content);
        mem_fail_at(s.env.mem, n);
        enum status st = line_file_cut(&s.env, s.path, 2, &last);
        mem_fail_at(s.env.mem, 0);
        assert_true(st == STATUS_MEMORY || n > 4);
        told.count = 0;
        assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_OK);
        assert_int_equal(told.count, st != STATUS_OK);
    }
    scratch_close(&s);
}

/* Behind the last record that stays: what the run does not write again is moved, in the order of the
 * file, behind what is there from before; a record that was cut off is the end of every killed run. */
static void damage_at_the_end_is_moved_too(void **state)
{
    static const struct {
        const char *tail, *moved;
    } cases[] = {
        {"{\"step\":3}\n{\"step\":4", ""},
        {"{\"step\":3}\n\001\002", "\001\002\n"},
        {"my own note", "my own note\n"},
        {"{\"note\":\"a", "{\"note\":\"a\n"},
        {"{\"step\":2}{\"step\":3}", "{\"step\":2}{\"step\":3}\n"}, /* more than one record */
        {"{\"step\":2}{\"step\":3,\"a", "{\"step\":2}{\"step\":3,\"a\n"},
        {"{\"step\":3}x", "{\"step\":3}x\n"},
        {"{\"step\":3,my own note", "{\"step\":3,my own note\n"},
        {"\001\002\n", "\001\002\n"},
        {"{\"step\":3,\"a\n{\"step\":4}\n\nx\n{\"st", "{\"step\":3,\"a\n\nx\n"},
    };
    struct scratch s;
    int64_t last;
    char content[100], *text;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(content, sizeof content, "{\"step\":2}\n%s", cases[i].tail);
        scratch_text(&s, "m.jsonl", content);
        assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_OK);
        assert_int_equal(last, 2);
        expect_content(&s, "m.jsonl", "{\"step\":2}\n", 11);
        expect_content(&s, "m.jsonl.damaged", cases[i].moved, strlen(cases[i].moved));
    }
    scratch_text(&s, "m.jsonl.damaged", "x\n");
    scratch_text(&s, "m.jsonl", "y\n{\"step\":3}\n"); /* nothing stays */
    assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_OK);
    assert_int_equal(last, 0);
    assert_int_equal(file_read(&s.env, s.path, 1000, &text, &bytes), STATUS_OK);
    assert_int_equal(bytes, 0);
    mem_free(&s.env, text);
    expect_content(&s, "m.jsonl.damaged", "x\ny\n", 4);

    assert_int_equal(dir_create(&s.env, scratch_path(&s, "m.jsonl.damaged")), STATUS_OK);
    scratch_text(&s, "m.jsonl", "y\n{\"step\":3}\n"); /* nowhere to go: the file is as it was */
    assert_int_equal(line_file_cut(&s.env, s.path, 2, &last), STATUS_IO);
    scratch_expect(&s, "m.jsonl.damaged");
    expect_content(&s, "m.jsonl", "y\n{\"step\":3}\n", 13);
    scratch_close(&s);
}

/* Wherever the end of a run has cut a record off. */
static void the_beginning_of_a_record_goes(void **state)
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
        expect_content(&s, "m.jsonl.damaged", "", 0);
    }
    scratch_close(&s);
}

static void what_nobody_writes_again_is_set_aside(void **state)
{
    struct scratch s;
    char *text;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    assert_int_equal(line_file_set_aside(&s.env, scratch_path(&s, "m.jsonl")), STATUS_OK);
    scratch_text(&s, "m.jsonl", "");
    assert_int_equal(line_file_set_aside(&s.env, s.path), STATUS_OK);
    assert_true(file_exists(s.path)); /* there is nothing in it */
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

static void the_last_step_is_found(void **state)
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
        cmocka_unit_test(lines_are_there_at_once_and_stay),
        cmocka_unit_test(failures_are_named),
        cmocka_unit_test(lines_of_later_steps_are_dropped),
        cmocka_unit_test(damaged_lines_are_named_and_moved),
        cmocka_unit_test(damage_at_the_end_is_moved_too),
        cmocka_unit_test(the_beginning_of_a_record_goes),
        cmocka_unit_test(what_nobody_writes_again_is_set_aside),
        cmocka_unit_test(the_last_step_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
