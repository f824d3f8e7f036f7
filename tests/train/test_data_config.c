#include "train/scratch.h"
#include "train/data/dataset.h"

static void test_keys_reach_the_struct(void **state)
{
    static const char yaml[] = "data:\n"
                               "  val: 0.1\n"
                               "  tokenizer: train:4096\n"
                               "  special: true\n"
                               "  mix:\n"
                               "    - {path: a.txt, weight: 3}\n"
                               "    - {path: 'b*.bin', format: u16}\n";
    struct scratch s;
    struct options *options;
    struct data_config config;
    (void)state;
    scratch_open(&s);
    assert_int_equal(options_create(&s.env, &options), STATUS_OK);
    assert_int_equal(options_bind(options, &data_options, &config), STATUS_OK);
    assert_string_equal(config.path, "");
    assert_int_equal(config.format, DATA_AUTO);
    assert_true(config.split == 0.05);
    assert_int_equal(options_load_yaml_text(options, yaml, strlen(yaml), "x"), STATUS_OK);
    assert_string_equal(config.val, "0.1");
    assert_string_equal(config.tokenizer, "train:4096");
    assert_true(config.special);
    assert_int_equal(config.mix.count, 2);
    const struct data_mix_item *items = config.mix.items;
    assert_string_equal(items[1].path, "b*.bin");
    assert_int_equal(items[1].format, DATA_U16);
    assert_true(items[0].weight == 3 && items[1].weight == 1);
    assert_int_equal(options_set(options, "data.format", "u32", "x"), STATUS_OK);
    assert_int_equal(config.format, DATA_U32);
    assert_int_not_equal(options_set(options, "data.split", "1.5", "x"), STATUS_OK);
    options_destroy(options);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keys_reach_the_struct)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
