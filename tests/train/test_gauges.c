/* Readings of a GPU: at most one per second, the newest, the mean, and how they are printed. */
#include "testing.h"
#include "train/run/pace.h"

static void test_unknown_values_are_not_printed(void **state)
{
    (void)state;
    char out[64];
    assert_string_equal(gauges_words(&(struct device_gauges){1755, 640.4, 61}, out, sizeof out),
                        "1755 MHz, 640 W, 61 C");
    assert_string_equal(gauges_words(&(struct device_gauges){0, 640.4, 0}, out, sizeof out),
                        "640 W");
    assert_string_equal(gauges_words(&(struct device_gauges){0}, out, sizeof out), "");
    assert_string_equal(gauges_words(&(struct device_gauges){1755, 640.4, 61}, out, 8), "1755 MH");
}

/* A device without sensors is queried, and all values stay unknown. */
static void test_a_cpu_has_no_readings(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct gauges gauges = {0};
    assert_ok(device_create(&env, "cpu", 0, &device));
    gauges_look(&gauges, device);
    assert_true(gauges.last > 0 && gauges.readings == 0);
    struct device_gauges whole = gauges_whole(&gauges);
    assert_true(whole.clock_mhz == 0 && whole.watts == 0 && whole.celsius == 0);
    device_destroy(device);
    env_destroy(&env);
}

static void test_readings_are_averaged(void **state)
{
    (void)state;
    const struct gauges gauges = {.sum = {3000, 1000, 70}, .readings = 2};
    struct device_gauges whole = gauges_whole(&gauges);
    assert_true(whole.clock_mhz == 1500 && whole.watts == 500 && whole.celsius == 70);
}

/* On a GPU with fixed values (fake_nvml): a second call within a second reads nothing. */
static void test_a_gpu_is_read_once_per_second(void **state)
{
    (void)state;
    if (getenv("SIFR_TEST_NVML") == NULL)
        testing_skip("NVML: the simulated one is not loaded (train/fake_nvml loads it)");
    struct env env = testing_env(1);
    struct device *device;
    struct gauges gauges = {0};
    assert_ok(device_create(&env, "cuda", 0, &device));
    gauges_look(&gauges, device);
    assert_int_equal(gauges.readings, 1);
    assert_true(gauges.now.clock_mhz == 1755 && gauges.now.celsius == 61);
    double first = gauges.last;
    gauges_look(&gauges, device);
    assert_true(gauges.readings == 1 || gauges.last >= first + 1);
    gauges.last -= 2;
    gauges_look(&gauges, device);
    assert_true(gauges.readings >= 2);
    struct device_gauges whole = gauges_whole(&gauges);
    assert_true(whole.clock_mhz == 1755 && whole.celsius == 61);
    device_destroy(device);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_values_are_not_printed),
        cmocka_unit_test(test_a_cpu_has_no_readings),
        cmocka_unit_test(test_readings_are_averaged),
        cmocka_unit_test(test_a_gpu_is_read_once_per_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
