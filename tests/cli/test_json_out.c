/* json_out -- commas, nesting and numbers; a second object that reuses the memory of the first. */
#include <math.h>
#include "testing.h"
#include "cli/json_out.h"

static void nested_values(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct json_out json;
    json_out_begin(&json, &env);
    json_out_string(&json, "name", "a \"b\"\n");
    json_out_bytes(&json, "text", "a\0b", 3);
    json_out_open(&json, "list", '[');
    json_out_int(&json, NULL, -3);
    json_out_real(&json, NULL, 0.1);
    json_out_real(&json, NULL, NAN);
    json_out_open(&json, NULL, '{');
    json_out_close(&json, '}');
    json_out_close(&json, ']');
    json_out_bool(&json, "yes", true);
    json_out_close(&json, '}');
    assert_string_equal(text_string(&json.text),
                        "{\"schema\": 1, \"name\": \"a \\\"b\\\"\\n\", \"text\": \"a\\u0000b\", "
                        "\"list\": [-3, 0.1, null, "
                        "{}], \"yes\": true}");
    int64_t taken = mem_allocation_count(env.mem);
    json_out_restart(&json);
    json_out_int(&json, "n", 1);
    json_out_close(&json, '}');
    assert_string_equal(text_string(&json.text), "{\"schema\": 1, \"n\": 1}");
    assert_int_equal(mem_allocation_count(env.mem), taken);
    text_free(&json.text);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nested_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
