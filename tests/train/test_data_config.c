#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>
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

/* The files that data.* names: missing ones are reported by key, unused ones are left out, paths
 * are made absolute. */
struct rig {
    struct scratch s;
    struct options *options;
    struct data_config config;
    char back[PATH_MAX];
};

/* Create a.txt, b.txt and t.json in a folder and make it the current one. */
static void rig_open(struct rig *rig)
{
    assert_non_null(getcwd(rig->back, sizeof rig->back));
    scratch_open(&rig->s);
    scratch_text(&rig->s, "a.txt", "a");
    scratch_text(&rig->s, "b.txt", "b");
    scratch_text(&rig->s, "t.json", "{}");
    assert_int_equal(chdir(rig->s.folder), 0);
    assert_int_equal(options_create(&rig->s.env, &rig->options), STATUS_OK);
    assert_int_equal(options_bind(rig->options, &data_options, &rig->config), STATUS_OK);
}

static void rig_close(struct rig *rig)
{
    options_destroy(rig->options);
    assert_int_equal(chdir(rig->back), 0);
    scratch_close(&rig->s);
}

static void set(struct rig *rig, const char *key, const char *value)
{
    assert_int_equal(options_set(rig->options, key, value, "the test"), STATUS_OK);
}

static void expect_missing(struct rig *rig, const char *words)
{
    assert_int_equal(data_paths_check(&rig->s.env, &rig->config), STATUS_CONFIG);
    scratch_expect(&rig->s, words);
}

static void test_missing_files_are_named_by_key(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    set(&rig, "data.path", "*.txt");
    set(&rig, "data.val", "0.1");
    set(&rig, "data.tokenizer", "train:300");
    assert_int_equal(data_paths_check(&rig.s.env, &rig.config), STATUS_OK);
    set(&rig, "data.path", "*.csv");
    expect_missing(&rig, "data.path: no file matches '*.csv', seen from '/");
    assert_int_equal(mkdir("c.csv", 0777), 0); /* a match of the glob that is not a file */
    expect_missing(&rig, "data.path: 'c.csv' is a folder; name plain files");
    assert_int_equal(rmdir("c.csv"), 0);
    assert_int_equal(mkfifo("c.csv", 0666), 0);
    expect_missing(&rig, "data.path: 'c.csv' is not a plain file; name plain files");
    set(&rig, "data.path", "c.csv");
    expect_missing(&rig, "data.path: 'c.csv' is not a plain file; name plain files");
    set(&rig, "data.path", "a.txt");
    set(&rig, "data.val", "c.txt");
    expect_missing(&rig, "data.val: no file matches 'c.txt'");
    set(&rig, "data.val", "b.txt");
    set(&rig, "data.tokenizer", "/c.json");
    expect_missing(&rig, "data.tokenizer: no file matches '/c.json'");
    set(&rig, "data.tokenizer", "t.json");
    set(&rig, "data.path", "");
    set(&rig, "data.mix", "[{path: a.txt}, {path: d.txt}]");
    expect_missing(&rig, "data.mix: no file matches 'd.txt'");
    rig_close(&rig);
}

static void expect_inside(const char *path, const char *name)
{
    char folder[PATH_MAX], wanted[PATH_MAX + 64];
    assert_non_null(getcwd(folder, sizeof folder));
    snprintf(wanted, sizeof wanted, "%s/%s", folder, name);
    assert_string_equal(path, wanted);
}

static void test_paths_are_made_absolute(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    struct env *env = &rig.s.env;
    set(&rig, "data.mix", "[{path: a.txt}, {path: /x/y.txt}]");
    set(&rig, "data.val", "b.txt");
    set(&rig, "data.tokenizer", "t.json");
    assert_int_equal(data_paths_make_absolute(env, rig.options, &rig.config), STATUS_OK);
    const struct data_mix_item *mix = rig.config.mix.items;
    expect_inside(mix[0].path, "a.txt");
    assert_string_equal(mix[1].path, "/x/y.txt");
    expect_inside(rig.config.val, "b.txt");
    expect_inside(rig.config.tokenizer, "t.json");
    assert_string_equal(rig.config.path, "");

    set(&rig, "data.val", "0.1"); /* a fraction and a learnt tokenizer are not files */
    set(&rig, "data.tokenizer", "train:300");
    assert_int_equal(data_paths_make_absolute(env, rig.options, &rig.config), STATUS_OK);
    assert_string_equal(rig.config.val, "0.1");
    assert_string_equal(rig.config.tokenizer, "train:300");
    rig_close(&rig);
}

static void test_only_held_out_files_are_needed(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig);
    set(&rig, "data.path", "gone.txt");
    set(&rig, "data.val", "0.1");
    assert_int_equal(data_paths_held_out(&rig.s.env, &rig.config), STATUS_OK);
    assert_string_equal(rig.config.path, "gone.txt"); /* the held-out fraction is cut from it */
    set(&rig, "data.val", "b.txt");
    assert_int_equal(data_paths_held_out(&rig.s.env, &rig.config), STATUS_OK);
    assert_string_equal(rig.config.path, "");
    assert_int_equal(data_paths_check(&rig.s.env, &rig.config), STATUS_OK);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_reach_the_struct),
        cmocka_unit_test(test_missing_files_are_named_by_key),
        cmocka_unit_test(test_paths_are_made_absolute),
        cmocka_unit_test(test_only_held_out_files_are_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
