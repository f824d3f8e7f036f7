/* Added tokens in text: leftmost, then longest; all kinds of white space next to them. */
#include "testing.h"
#include "train/tokenizer/tokenizer_impl.h"

static void make_set(struct env *env, struct added_set *set, struct added *list,
                     const char *const *contents, int count)
{
    *set = (struct added_set){.list = list, .count = count};
    text_init(&set->contents, env);
    for (int i = 0; i < count; i++) {
        list[i] = (struct added){.id = i,
                                 .special = i % 2,
                                 .at = (uint32_t)set->contents.bytes,
                                 .bytes = (uint32_t)strlen(contents[i])};
        text_add(&set->contents, contents[i]);
    }
    added_set_finish(set);
}

static void test_the_leftmost_and_longest_token_is_found(void **state)
{
    (void)state;
    static const char *const contents[] = {"<b>", "<a>", "<aa>", "<",
                                           "<a",  "x",   "<aab", "\xe2\x82\xac"};
    static const struct {
        const char *text;
        size_t from;
        int id; /* -1 = no match */
        size_t start;
    } cases[] = {
        {"..<a>", 0, 1, 2},         {"..<aa>x", 0, 2, 2}, {"<aaba>", 0, 6, 0},
        {"<aac", 0, 4, 0},          {"<c", 0, 3, 0},      {"<", 0, 3, 0},
        {"abc", 0, -1, 0},          {"", 0, -1, 0},       {"<a>  x", 1, 5, 5},
        {"<b>", 0, 0, 0},           {"x", 1, -1, 0},      {"\xe2\x82", 0, -1, 0},
        {"a\xe2\x82\xac", 0, 7, 1},
    };
    struct env env = testing_env(1);
    struct added_set set;
    struct added list[8];
    make_set(&env, &set, list, contents, 8);
    assert_int_equal(set.ordinary_count, 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct added_match match;
        bool found = added_find(&set, (const uint8_t *)cases[i].text, strlen(cases[i].text),
                                cases[i].from, &match);
        assert_int_equal(found, cases[i].id >= 0);
        if (found) {
            assert_int_equal(match.token->id, cases[i].id);
            assert_int_equal(match.start, cases[i].start);
            assert_int_equal(match.end, cases[i].start + strlen(contents[match.token->id]));
        }
    }
    text_free(&set.contents);
    env_destroy(&env);
}

/* Every White_Space character, and similar characters that are not white space. */
static void test_all_white_space_is_stripped(void **state)
{
    (void)state;
    static const char spaces[] =
        " \t\n\v\f\r\xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x80\xe2\x80\x8a\xe2\x80\xa8"
        "\xe2\x80\xa9\xe2\x80\xaf\xe2\x81\x9f\xe3\x80\x80";
    static const char *const others[] = {"a",
                                         "\x1f",
                                         "\xc2\x86",
                                         "\xe1\xa0\x8e",
                                         "\xe2\x80\x8b",
                                         "\xe2\x81\xa0",
                                         "\xf3\x80\x80",
                                         "\x80\x80",
                                         "\xe3\x80"};
    char text[128];
    size_t bytes = strlen(spaces);
    assert_int_equal(added_space_after((const uint8_t *)spaces, bytes), bytes);
    assert_int_equal(added_space_before((const uint8_t *)spaces, bytes), bytes);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(text, sizeof text, "%s%s", spaces, others[i]);
        assert_int_equal(added_space_after((const uint8_t *)text, strlen(text)), bytes);
        assert_int_equal(added_space_before((const uint8_t *)text, strlen(text)), 0);
        snprintf(text, sizeof text, "%s%s", others[i], spaces);
        assert_int_equal(added_space_before((const uint8_t *)text, strlen(text)), bytes);
        assert_int_equal(added_space_after((const uint8_t *)text, strlen(text)), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_leftmost_and_longest_token_is_found),
        cmocka_unit_test(test_all_white_space_is_stripped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
