/* Only checkpoints that sifr made are removed or renamed: links, a user's files and other folders
 * stay, wherever they are. */
#include <unistd.h>
#include "scratch.h"
#include "base/part_folder.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/checkpoint/checkpoint_state.h"

static char warned[1024]; /* the last warning */

static void keep_warning(void *user, enum log_level level, const char *line)
{
    (void)user;
    if (level == LOG_WARN)
        snprintf(warned, sizeof warned, "%s", line);
}

static const char *at(struct scratch *s, const char *name)
{
    char inside[62];
    snprintf(inside, sizeof inside, "c/%.59s", name);
    return scratch_path(s, inside);
}

static void put(struct scratch *s, const char *folder, const char *name, const char *text)
{
    char inside[62];
    snprintf(inside, sizeof inside, "c/%.16s/%.40s", folder, name);
    scratch_text(s, inside, text);
}

static bool is_there(struct scratch *s, const char *name)
{
    return !path_is_free(at(s, name));
}

/* Create the files of a checkpoint in a folder of this name. */
static void make_checkpoint(struct scratch *s, const char *folder)
{
    char marker[CHECKPOINT_MARKER], optimizer[64];
    snprintf(optimizer, sizeof optimizer, "%.16s/optimizer", folder);
    assert_int_equal(dir_create(&s->env, at(s, optimizer)), STATUS_OK);
    checkpoint_marker("{}", 2, marker);
    put(s, folder, "COMPLETE", marker);
    put(s, folder, "state.json", "{}");
    put(s, folder, "config.json", "{}");
    put(s, folder, "tokenizer.json", "{}");
    put(s, folder, "model-00001-of-00002.safetensors", "x");
    put(s, folder, "model-00002-of-00002.safetensors", "x");
    put(s, folder, "model.safetensors.index.json", "{}");
    put(s, folder, "optimizer/master.safetensors", "x");
    put(s, folder, "optimizer/momentum.safetensors", "x");
}

static void make_run(struct scratch *s)
{
    scratch_open(s);
    env_destroy(&s->env);
    assert_int_equal(env_create(&s->env, keep_warning, NULL, LOG_WARN, 1), STATUS_OK);
    *warned = '\0';
    make_checkpoint(s, "step-1");
    make_checkpoint(s, "step-2");
    make_checkpoint(s, "step-3");
    assert_int_equal(dir_create(&s->env, scratch_path(s, "precious/below")), STATUS_OK);
    scratch_text(s, "precious/below/file", "mine");
}

static void link_to(struct scratch *s, const char *target, const char *name)
{
    char path[128];
    strcpy(path, scratch_path(s, target));
    assert_int_equal(symlink(path, at(s, name)), 0);
}

static void close_run(struct scratch *s)
{
    assert_true(file_exists(scratch_path(s, "precious/below/file")));
    scratch_close(s);
}

static enum status prune(struct scratch *s, int64_t keep)
{
    char folder[128];
    strcpy(folder, scratch_path(s, "c"));
    return checkpoint_keep_prune(&s->env, folder, keep, 0);
}

static void test_old_checkpoints_are_removed(void **state)
{
    (void)state;
    struct scratch s;
    make_run(&s);
    put(&s, "step-1", PART_FOLDER_MARKER, "1 host\n"); /* a process was killed while removing it */
    assert_int_equal(prune(&s, 1), STATUS_OK);
    assert_true(is_there(&s, "step-3/COMPLETE"));
    assert_false(is_there(&s, "step-2") || is_there(&s, "step-1"));
    assert_false(is_there(&s, ".old-step-2") || is_there(&s, ".old-step-1"));
    close_run(&s);
}

/* A user archived a checkpoint and left a link in its place. */
static void test_a_linked_checkpoint_is_kept(void **state)
{
    (void)state;
    struct scratch s;
    char from[128];
    make_run(&s);
    strcpy(from, at(&s, "step-2"));
    assert_int_equal(rename(from, scratch_path(&s, "archive")), 0);
    link_to(&s, "archive", "step-2");
    assert_int_equal(prune(&s, 1), STATUS_CONFIG);
    scratch_expect(&s, "step-2' is kept: it is a symbolic link");
    assert_true(path_is_link(at(&s, "step-2")));
    assert_true(file_exists(scratch_path(&s, "archive/optimizer/momentum.safetensors")));
    assert_true(file_exists(scratch_path(&s, "archive/COMPLETE")));
    assert_false(is_there(&s, "step-1")); /* the others are removed nevertheless */
    close_run(&s);
}

static void test_a_checkpoint_with_foreign_files_is_kept(void **state)
{
    (void)state;
    static const char *const names[] = {"notes.txt", "optimizer/notes.txt", "model.safetensors.bak",
                                        "model-1-of-2.safetensors", "optimizer/model.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct scratch s;
        char message[128], path[64];
        make_run(&s);
        put(&s, "step-2", names[i], "mine");
        snprintf(message, sizeof message, "step-2' is kept: '%s' in it is not part", names[i]);
        assert_int_equal(prune(&s, 1), STATUS_CONFIG);
        scratch_expect(&s, message);
        snprintf(path, sizeof path, "step-2/%.48s", names[i]);
        assert_true(is_there(&s, path) && is_there(&s, "step-2/optimizer/master.safetensors"));
        assert_false(is_there(&s, "step-1"));
        close_run(&s);
    }
}

static void test_a_checkpoint_with_a_linked_file_is_kept(void **state)
{
    (void)state;
    struct scratch s;
    make_run(&s);
    assert_int_equal(unlink(at(&s, "step-2/optimizer/master.safetensors")), 0);
    link_to(&s, "precious/below/file", "step-2/optimizer/master.safetensors");
    assert_int_equal(prune(&s, 1), STATUS_CONFIG);
    scratch_expect(&s, "'optimizer/master.safetensors' in it is not part");
    assert_true(is_there(&s, "step-2/COMPLETE"));
    close_run(&s);
}

/* Folders and links with a user's names do not count toward the number of checkpoints to keep. */
static void test_foreign_names_do_not_count(void **state)
{
    (void)state;
    struct scratch s;
    make_run(&s);
    link_to(&s, "precious", "step-90");
    assert_int_equal(dir_create(&s.env, at(&s, "step-80")), STATUS_OK);
    scratch_text(&s, "c/step-70", "mine");
    make_checkpoint(&s, "step-09");
    assert_int_equal(prune(&s, 1), STATUS_OK);
    assert_true(is_there(&s, "step-3/COMPLETE"));
    assert_false(is_there(&s, "step-2") || is_there(&s, "step-1"));
    assert_true(is_there(&s, "step-90") && is_there(&s, "step-80") && is_there(&s, "step-70"));
    assert_true(is_there(&s, "step-09/COMPLETE"));
    close_run(&s);
}

static void clear(struct scratch *s)
{
    char folder[128];
    strcpy(folder, scratch_path(s, "c"));
    assert_int_equal(checkpoint_keep_clear(&s->env, folder), STATUS_OK);
}

/* Folders that provably belong to a killed run are removed. */
static void test_leftovers_are_removed(void **state)
{
    (void)state;
    struct scratch s;
    make_run(&s);
    make_checkpoint(&s, ".old-step-2");
    assert_int_equal(unlink(at(&s, ".old-step-2/state.json")), 0);
    make_checkpoint(&s, ".old-step-2-2");
    make_checkpoint(&s, ".step-4.tmp");
    put(&s, ".step-4.tmp", PART_FOLDER_MARKER, "1 host\n");
    link_to(&s, "precious", ".step-4.tmp/link");
    assert_int_equal(dir_create(&s.env, at(&s, ".step-5.tmp-2")), STATUS_OK);
    put(&s, "step-3", PART_FOLDER_MARKER, "1 host\n");
    make_checkpoint(&s, ".old-step-2-mine"); /* a name that sifr never uses */
    clear(&s);
    assert_true(is_there(&s, ".old-step-2-mine/COMPLETE"));
    assert_string_equal(warned, "");
    assert_false(is_there(&s, ".old-step-2") || is_there(&s, ".old-step-2-2"));
    assert_false(is_there(&s, ".step-4.tmp") || is_there(&s, ".step-5.tmp-2"));
    assert_false(is_there(&s, "step-3/" PART_FOLDER_MARKER));
    assert_true(is_there(&s, "step-3/COMPLETE"));
    close_run(&s);
}

/* Everything else stays, with a warning. */
static void test_foreign_leftovers_are_kept(void **state)
{
    (void)state;
    static const char *const names[] = {".step-4.tmp", ".old-step-2"};
    for (int i = 0; i < 2; i++) {
        struct scratch s;
        char message[128], path[64];
        snprintf(message, sizeof message, "%s' is left as it is", names[i]);
        make_run(&s);
        link_to(&s, "precious", names[i]);
        clear(&s);
        assert_non_null(strstr(warned, message));
        assert_true(path_is_link(at(&s, names[i])));
        assert_int_equal(unlink(at(&s, names[i])), 0);

        *warned = '\0';
        assert_int_equal(dir_create(&s.env, at(&s, names[i])), STATUS_OK);
        put(&s, names[i], "model.safetensors", "mine");
        clear(&s);
        assert_non_null(strstr(warned, message));
        snprintf(path, sizeof path, "%s/model.safetensors", names[i]);
        assert_true(is_there(&s, path));

        *warned = '\0';
        make_checkpoint(&s, ".old-step-3");
        put(&s, ".old-step-3", "notes.txt", "mine");
        clear(&s);
        assert_non_null(strstr(warned, "' is left as it is"));
        assert_true(is_there(&s, ".old-step-3/notes.txt") && is_there(&s, ".old-step-3/COMPLETE"));

        put(&s, "step-3", PART_FOLDER_MARKER, "a note of mine");
        clear(&s);
        assert_true(is_there(&s, "step-3/" PART_FOLDER_MARKER));
        close_run(&s);
    }
}

static void test_damaged_checkpoints_are_set_aside(void **state)
{
    (void)state;
    struct scratch s;
    char folder[128];
    make_run(&s);
    strcpy(folder, scratch_path(&s, "c"));
    link_to(&s, "nothing", "step-3.damaged"); /* this name is taken */
    assert_int_equal(checkpoint_keep_set_aside(&s.env, folder, 2), STATUS_OK);
    assert_true(is_there(&s, "step-3.damaged-2/COMPLETE"));
    assert_true(path_is_link(at(&s, "step-3.damaged")));

    link_to(&s, "precious", "step-4"); /* nothing is renamed before this is detected */
    make_checkpoint(&s, "step-5");
    assert_int_equal(checkpoint_keep_set_aside(&s.env, folder, 2), STATUS_CONFIG);
    scratch_expect(&s, "step-4' is not a folder that sifr made");
    assert_true(is_there(&s, "step-5/COMPLETE") && path_is_link(at(&s, "step-4")));
    close_run(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_old_checkpoints_are_removed),
        cmocka_unit_test(test_a_linked_checkpoint_is_kept),
        cmocka_unit_test(test_a_checkpoint_with_foreign_files_is_kept),
        cmocka_unit_test(test_a_checkpoint_with_a_linked_file_is_kept),
        cmocka_unit_test(test_foreign_names_do_not_count),
        cmocka_unit_test(test_leftovers_are_removed),
        cmocka_unit_test(test_foreign_leftovers_are_kept),
        cmocka_unit_test(test_damaged_checkpoints_are_set_aside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
