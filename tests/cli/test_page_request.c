/* page_request -- what is allowed, and what is refused: other tokens, hosts, origins, methods and
 * paths; addresses to listen on. */
#include <limits.h>
#include "testing.h"
#include "cli/page/page_request.h"

#define TOKEN "0123456789abcdef0123456789abcdef"
static const struct page_rules rules = {.token = TOKEN, .host = "node7"};

static int check(const char *method, const char *path, const char *host, const char *origin)
{
    enum page_target target;
    return page_request_check(&rules, &(struct page_request){method, path, host, origin}, &target);
}

static void the_page_is_behind_its_token(void **state)
{
    (void)state;
    enum page_target target;
    struct page_request request = {"GET", "/" TOKEN "/series", "127.0.0.1:8017", NULL};
    assert_int_equal(page_request_check(&rules, &request, &target), 200);
    assert_int_equal(target, PAGE_SERIES);
    assert_int_equal(check("GET", "/" TOKEN "/", "127.0.0.1:8017", NULL), 200);
    assert_int_equal(check("HEAD", "/" TOKEN "/", "127.0.0.1:8017", NULL), 200);
    static const char *const wrong[] = {"/",
                                        "//",
                                        "/page.js",
                                        "/0123456789abcdef0123456789abcde",
                                        "/0123456789abcdef0123456789abcdee/",
                                        "/1123456789abcdef0123456789abcdef/",
                                        "/0123456789ABCDEF0123456789ABCDEF/"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(check("GET", wrong[i], "127.0.0.1:8017", NULL), 403);
}

static void only_known_names_are_served(void **state)
{
    (void)state;
    static const char *const wrong[] = {"/" TOKEN,
                                        "/" TOKEN "/..",
                                        "/" TOKEN "/../page.js",
                                        "/" TOKEN "/page.js/",
                                        "/" TOKEN "//page.js",
                                        "/" TOKEN "/config.yaml",
                                        "/" TOKEN "x/page.js",
                                        "/" TOKEN "/%2e%2e/etc/passwd",
                                        "/" TOKEN "/page.js\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(check("GET", wrong[i], "127.0.0.1:8017", NULL), 404);
}

static void the_host_is_this_machine(void **state)
{
    (void)state;
    static const char *const right[] = {"localhost",   "localhost:1", "LOCALHOST:8017",
                                        "127.0.0.1",   "[::1]:8017",  "[::1]",
                                        "10.1.2.3:99", "node7:8017",  "NODE7"};
    static const char *const wrong[] = {"",
                                        ":",
                                        "evil.com",
                                        "evil.com:8017",
                                        "localhost.evil.com",
                                        "127.0.0.1.evil.com",
                                        "node7.evil.com",
                                        "[::1",
                                        "[::1]x",
                                        "localhost:",
                                        "localhost:x",
                                        "localhost:99999",
                                        "127.0.0.1:8017:1",
                                        " localhost",
                                        "::1"};
    for (size_t i = 0; i < sizeof right / sizeof *right; i++)
        assert_int_equal(check("GET", "/" TOKEN "/", right[i], NULL), 200);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(check("GET", "/" TOKEN "/", wrong[i], NULL), 403);
    assert_int_equal(check("GET", "/" TOKEN "/", NULL, NULL), 403);
    char name[1000];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(check("GET", "/" TOKEN "/", name, NULL), 403);
}

static void other_origins_and_methods_are_refused(void **state)
{
    (void)state;
    assert_int_equal(check("GET", "/" TOKEN "/", "localhost:1", "http://localhost:1"), 200);
    assert_int_equal(check("GET", "/" TOKEN "/", "localhost:1", "http://localhost:2"), 403);
    assert_int_equal(check("GET", "/" TOKEN "/", "localhost:1", "https://localhost:1"), 403);
    assert_int_equal(check("GET", "/" TOKEN "/", "localhost:1", "null"), 403);
    assert_int_equal(check("POST", "/" TOKEN "/", "localhost:1", NULL), 405);
    assert_int_equal(check("get", "/" TOKEN "/", "localhost:1", NULL), 405);
    assert_int_equal(check("GET", "*", "localhost:1", NULL), 400);
    assert_int_equal(check("GET", NULL, "localhost:1", NULL), 400);
    assert_int_equal(check(NULL, "/" TOKEN "/", "localhost:1", NULL), 400);
}

static void numbers_are_plain(void **state)
{
    (void)state;
    assert_int_equal(page_number("0", 1), 0);
    assert_int_equal(page_number("15", 16), 15);
    assert_int_equal(page_number("16", 16), -1);
    static const char *const wrong[] = {"",   "-1",  "+1",  " 1",
                                        "1 ", "0x1", "1e3", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(page_number(wrong[i], LLONG_MAX), -1);
    assert_int_equal(page_number(NULL, 5), -1);
}

static void addresses_are_loopback_unless_another_is_named(void **state)
{
    (void)state;
    struct page_address a;
    assert_true(page_address_parse("", &a) && strcmp(a.host, "127.0.0.1") == 0 && a.port == 0);
    assert_true(page_address_parse("0", &a) && strcmp(a.host, "127.0.0.1") == 0 && !a.beyond);
    assert_true(page_address_parse("8080", &a) && a.port == 8080 && !a.beyond);
    assert_true(page_address_parse("localhost:81", &a) && a.port == 81 && !a.beyond);
    assert_true(page_address_parse("[::1]:81", &a) && a.port == 81 && !a.beyond);
    assert_true(page_address_parse("0.0.0.0:81", &a) && a.port == 81 && a.beyond);
    assert_true(page_address_parse("[::]:81", &a) && a.beyond);
    assert_true(page_address_parse("10.0.0.7", &a) && a.port == 0 && a.beyond);
    static const char *const wrong[] = {"65536",         "-1",        "x",
                                        "node7:80",      "10.0.0.7:", "10.0.0.7:x",
                                        "1.2.3.4:99999", ":80",       "10.0.0:80"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(page_address_parse(wrong[i], &a));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_is_behind_its_token),
        cmocka_unit_test(only_known_names_are_served),
        cmocka_unit_test(the_host_is_this_machine),
        cmocka_unit_test(other_origins_and_methods_are_refused),
        cmocka_unit_test(numbers_are_plain),
        cmocka_unit_test(addresses_are_loopback_unless_another_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
