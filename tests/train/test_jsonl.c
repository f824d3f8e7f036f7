#include "train/scratch.h"
#include "train/data/jsonl.h"

struct seen {
    char log[1000];
};

static enum status note(void *user, const struct jsonl_document *d)
{
    struct seen *seen = user;
    size_t used = strlen(seen->log);
    snprintf(seen->log + used, sizeof seen->log - used, "%d@%d[%.*s|%.*s]", (int)d->line,
             (int)d->offset, (int)d->prompt_bytes, d->prompt ? d->prompt : "", (int)d->text_bytes,
             d->text);
    return d->text_bytes == 4 && memcmp(d->text, "stop", 4) == 0 ? STATUS_STOPPED : STATUS_OK;
}

static enum status parse(struct scratch *s, const char *text, struct seen *seen)
{
    *seen = (struct seen){""};
    return jsonl_parse(&s->env, text, strlen(text), "x.jsonl", note, seen);
}

static void test_documents_are_visited_in_order(void **state)
{
    struct scratch s;
    struct seen seen;
    (void)state;
    scratch_open(&s);
    assert_int_equal(parse(&s,
                           "\xef\xbb\xbf{\"text\":\"a\\nb\",\"id\":7}\r\n\n  \n"
                           "{\"prompt\":\"p\",\"completion\":\"c\"}\n{\"text\":\"\"}",
                           &seen),
                     STATUS_OK);
    assert_string_equal(seen.log, "1@3[|a\nb]4@31[p|c]5@63[|]");
    assert_int_equal(parse(&s, "", &seen), STATUS_OK);
    assert_string_equal(seen.log, "");
    assert_int_equal(parse(&s, "{\"text\":\"stop\"}\n{\"text\":\"b\"}\n", &seen), STATUS_STOPPED);
    assert_string_equal(seen.log, "1@0[|stop]");
    scratch_close(&s);
}

static void refuse(struct scratch *s, const char *text, const char *message)
{
    struct seen seen;
    assert_int_equal(parse(s, text, &seen), STATUS_FORMAT);
    scratch_expect(s, message);
}

static void test_errors_name_the_line(void **state)
{
    struct scratch s;
    (void)state;
    scratch_open(&s);
    refuse(&s, "{\"text\":\"a\"}\n{\"text\":\n", "'x.jsonl' line 2: not valid JSON");
    refuse(&s, "\n\n{\"tekst\":\"a\"}", "line 3: needs {\"text\"");
    refuse(&s, "{\"text\":1}", "\"text\" is not a string");
    refuse(&s, "{\"prompt\":\"a\"}", "needs");
    refuse(&s, "{\"completion\":\"a\"}", "needs");
    refuse(&s, "{\"text\":\"a\",\"prompt\":\"b\"}", "needs");
    refuse(&s, "{\"prompt\":\"a\",\"completion\":[]}", "\"completion\" is not a string");
    refuse(&s, "[\"text\"]", "needs");
    refuse(&s, "{\"text\":\"a\",\"text\":\"b\"}", "duplicate");
    refuse(&s, "{\"text\":\"a\"} x", "not valid JSON");
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents_are_visited_in_order),
        cmocka_unit_test(test_errors_name_the_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
