/* model.safetensors.index.json: its files are listed once each; names that lead outside the folder
 * are refused. */
#include "scratch.h"
#include "train/weights/weight_index.h"

static enum status parse(struct scratch *s, const char *text, struct weight_index *index)
{
    return weight_index_parse(&s->env, text, strlen(text), "m/index.json", index);
}

static void test_files_are_listed_once(void **state)
{
    (void)state;
    struct scratch s;
    struct weight_index index;
    scratch_open(&s);
    assert_int_equal(parse(&s,
                           "{\"metadata\": {}, \"weight_map\": {\"a\": \"two\", \"b\": \"one\", "
                           "\"c\": \"two\", \"d\": \"one\"}}",
                           &index),
                     STATUS_OK);
    assert_int_equal(index.count, 2);
    assert_string_equal(index.files[0], "one");
    assert_string_equal(index.files[1], "two");
    weight_index_free(&index);
    assert_int_equal(parse(&s, "{\"weight_map\": {}}", &index), STATUS_OK);
    assert_int_equal(index.count, 0);
    weight_index_free(&index);
    scratch_close(&s);
}

static void test_wrong_indexes_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"{\"weight_map\": {\"a\": \"one\", \"b\": \"../x\"}}", "names '../x'"},
        {"{\"weight_map\": {\"a\": \"/etc/x\"}}", "names '/etc/x'"},
        {"{\"weight_map\": {\"a\": \"x\\\\y\"}}", "no file of this folder"},
        {"{\"weight_map\": {\"a\": \"\"}}", "no file of this folder"},
        {"{\"weight_map\": {\"a\": 7}}", "(no text)"},
        {"{\"weight_map\": []}", "there is no weight_map"},
        {"{}", "there is no weight_map"},
        {"[]", "there is no weight_map"},
        {"{\"weight_map\": {", "line 1"},
        {"{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "line 1"},
        {"", "line 1"},
    };
    struct scratch s;
    struct weight_index index;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&s, bad[i][0], &index), STATUS_FORMAT);
        assert_non_null(strstr(log_first_error(s.env.log), "m/index.json"));
        scratch_expect(&s, bad[i][1]);
    }
    for (int n = 1; n <= 2; n++) {
        mem_fail_at(s.env.mem, n);
        assert_int_equal(parse(&s, "{\"weight_map\": {\"a\": \"x\"}}", &index), STATUS_MEMORY);
    }
    mem_fail_at(s.env.mem, 0);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_are_listed_once),
        cmocka_unit_test(test_wrong_indexes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
