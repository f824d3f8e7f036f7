/* The search chooses who updates far state by the machine's rates, and the largest window that
 * fits, unless these are fixed. */
#include "plan/search_rig.h"

static struct plan_request offloaded_request(void)
{
    struct plan_request request = search_request_of(1, 6, 256, 1, 16);
    request.gpu = true;
    request.zero.type = DTYPE_BF16;
    request.zero.offload = (struct zero_offload){
        .optimizer = FAR_HOST, .share = 1, .window = 1 << 20, .folder = "/nowhere"};
    return request;
}

/* The best layout of a GPU whose link and cores have these rates. */
static struct search_layout best_of(struct env *env, struct search_fixed fixed, double link,
                                    double host_update)
{
    struct machine_profile machine = search_machine(1e10, 2e9);
    struct plan_request request = offloaded_request();
    struct search_result result;
    machine.gpu = true;
    machine.offload = (struct machine_offload){.link = link, .host_update = host_update};
    fixed.offload = (struct plan_offload_fixed){true, true, true, true};
    fixed.micro_batch = fixed.recompute = true;
    struct search_space space = {.request = &request,
                                 .global_batch = 16,
                                 .machine = &machine,
                                 .node = 4,
                                 .memory = (size_t)4 << 30,
                                 .host = (size_t)4 << 30,
                                 .fixed = fixed,
                                 .most = 1};
    assert_ok(search_layouts(env, &space, &result));
    assert_int_equal(result.count, 1);
    struct search_layout best = result.layouts[0];
    search_result_free(env, &result);
    return best;
}

static void test_the_faster_one_updates(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct search_fixed window = {.window = true}, both = {.window = true, .update = true};
    struct search_layout device = best_of(&env, window, 1e8, 1e6);
    struct search_layout host = best_of(&env, window, 1e8, 1e13);
    struct search_layout asked = best_of(&env, both, 1e8, 1e13);
    assert_false(device.request.zero.offload.on_host);
    assert_true(host.request.zero.offload.on_host);
    assert_true(host.time.step < 0.9 * device.time.step);
    assert_false(asked.request.zero.offload.on_host);
    env_destroy(&env);
}

static void test_free_memory_becomes_the_window(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct search_fixed fixed = {.window = true};
    struct search_layout small = best_of(&env, fixed, 1e8, 0);
    struct search_layout large = best_of(&env, (struct search_fixed){0}, 1e8, 0);
    assert_int_equal(small.request.zero.offload.window, 1 << 20);
    assert_true(large.request.zero.offload.window >= 1000000000);
    assert_true(large.needed_bytes > small.needed_bytes && large.needed_bytes <= (size_t)4 << 30);
    assert_true(large.time.step < small.time.step);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_faster_one_updates),
        cmocka_unit_test(test_free_memory_becomes_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
