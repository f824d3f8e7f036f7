/* Two envs in one process are independent. */
#include "base/fixture.h"

static void test_independent(void **state)
{
    (void)state;
    struct fixture a, b;
    struct env *first = fixture_open(&a), *second = fixture_open(&b);
    void *block;
    mem_fail_at(second->mem, 1);
    assert_int_equal(mem_alloc(first, MEM_PARAMS, "w", 8, &block), STATUS_OK);
    assert_int_equal(mem_total(second->mem), 0);
    FAIL(first, IO, "mine");
    assert_string_equal(log_first_error(second->log), "");
    assert_int_equal(b.heard.count, 0);
    assert_int_equal(first->threads, 1);
    mem_free(first, block);
    fixture_close(&a);
    fixture_close(&b);
    assert_null(first->log);
    env_destroy(first); /* destroying an empty env is allowed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_independent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
