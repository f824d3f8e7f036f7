/* Removing folders with their content: links are not followed, only members are removed, and the
 * proof file goes last. */
#include <errno.h>
#include <unistd.h>
#include "train/scratch.h"
#include "base/output.h"
#include "base/file.h"

static bool is_member(const char *name, bool is_folder)
{
    return is_folder
               ? strcmp(name, "sub") == 0
               : strcmp(name, "a") == 0 || strcmp(name, "sub/b") == 0 || strcmp(name, "PROOF") == 0;
}

static void make_tree(struct scratch *s)
{
    scratch_open(s);
    assert_int_equal(dir_create(&s->env, scratch_path(s, "tree/sub")), STATUS_OK);
    scratch_text(s, "tree/a", "a");
    scratch_text(s, "tree/sub/b", "b");
    scratch_text(s, "tree/PROOF", "ours");
    assert_int_equal(dir_create(&s->env, scratch_path(s, "precious/below")), STATUS_OK);
    scratch_text(s, "precious/below/file", "mine");
}

static void link_to_precious(struct scratch *s, const char *name)
{
    char target[128];
    strcpy(target, scratch_path(s, "precious"));
    assert_int_equal(symlink(target, scratch_path(s, name)), 0);
}

static void expect_precious(struct scratch *s)
{
    assert_true(file_exists(scratch_path(s, "precious/below/file")));
}

static void test_link_at_the_top(void **state)
{
    (void)state;
    struct scratch s;
    char stranger[TREE_PATH_BYTES];
    make_tree(&s);
    link_to_precious(&s, "top");
    assert_int_equal(tree_remove(&s.env, scratch_path(&s, "top"), NULL, NULL), STATUS_IO);
    scratch_expect(&s, "top'");
    assert_int_equal(tree_find_stranger(&s.env, s.path, is_member, stranger), STATUS_IO);
    assert_true(path_is_link(scratch_path(&s, "top")));
    expect_precious(&s);
    scratch_close(&s);
}

/* When everything is removed, a link is removed as a link. */
static void test_links_below(void **state)
{
    (void)state;
    struct scratch s;
    make_tree(&s);
    link_to_precious(&s, "tree/link");
    link_to_precious(&s, "tree/sub/link");
    assert_int_equal(tree_remove(&s.env, scratch_path(&s, "tree"), NULL, "PROOF"), STATUS_OK);
    assert_true(path_is_free(scratch_path(&s, "tree")));
    expect_precious(&s);
    assert_int_equal(tree_remove(&s.env, scratch_path(&s, "tree"), NULL, NULL), STATUS_OK);
    scratch_close(&s);
}

/* A file that is not a member is named and stays. */
static void test_strangers(void **state)
{
    (void)state;
    static const char *const strangers[] = {"tree/notes.txt", "tree/sub/notes.txt", "tree/b"};
    for (int i = 0; i < 5; i++) {
        struct scratch s;
        char stranger[TREE_PATH_BYTES], path[128];
        make_tree(&s);
        assert_int_equal(tree_find_stranger(&s.env, scratch_path(&s, "tree"), is_member, stranger),
                         STATUS_OK);
        assert_string_equal(stranger, "");
        if (i < 3) {
            strcpy(path, scratch_text(&s, strangers[i], "mine"));
        } else if (i == 3) { /* a link with a member's name */
            assert_int_equal(unlink(scratch_path(&s, "tree/a")), 0);
            link_to_precious(&s, "tree/a");
            strcpy(path, s.path);
        } else { /* a folder with a file's name */
            assert_int_equal(unlink(scratch_path(&s, "tree/a")), 0);
            assert_int_equal(dir_create(&s.env, s.path), STATUS_OK);
            strcpy(path, s.path);
        }
        assert_int_equal(tree_find_stranger(&s.env, scratch_path(&s, "tree"), is_member, stranger),
                         STATUS_OK);
        assert_string_equal(stranger, path);
        assert_int_equal(tree_remove(&s.env, scratch_path(&s, "tree"), is_member, "PROOF"),
                         STATUS_IO);
        log_error_clear(s.env.log);
        assert_false(path_is_free(path));
        assert_int_equal(path_is_free(scratch_path(&s, "tree/sub/b")), true);
        expect_precious(&s);
        scratch_close(&s);
    }
}

/* Whichever removal fails, the proof file exists as long as anything else does, and the next
 * attempt completes the removal. */
static void test_every_removal_can_fail(void **state)
{
    (void)state;
    enum status st = STATUS_IO;
    for (int n = 1; st != STATUS_OK; n++) {
        struct scratch s;
        struct output_faults faults = {.error = EIO};
        make_tree(&s);
        s.env.faults = &faults;
        atomic_store(&faults.left, n);
        st = tree_remove(&s.env, scratch_path(&s, "tree"), is_member, "PROOF");
        assert_int_equal(st, n <= 5 ? STATUS_IO : STATUS_OK); /* 3 files, 2 folders */
        if (n <= 4)
            assert_true(file_exists(scratch_path(&s, "tree/PROOF")));
        s.env.faults = NULL;
        log_error_clear(s.env.log);
        assert_int_equal(tree_remove(&s.env, scratch_path(&s, "tree"), is_member, "PROOF"),
                         STATUS_OK);
        assert_true(path_is_free(s.path));
        scratch_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_at_the_top),
        cmocka_unit_test(test_links_below),
        cmocka_unit_test(test_strangers),
        cmocka_unit_test(test_every_removal_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
