/* Files in a temporary folder under /tmp: maps, reads, atomic writes and their failures, folders,
 * globs. */
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/fixture.h"
#include "base/input.h"
#include "base/text.h"

struct folder {
    struct fixture f;
    struct env *env;
    char root[64], path[256];
};

static int open_folder(void **state)
{
    struct folder *folder = calloc(1, sizeof *folder);
    folder->env = fixture_open(&folder->f);
    strcpy(folder->root, "/tmp/sifr-test-file-XXXXXX");
    *state = folder;
    return mkdtemp(folder->root) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

static int close_folder(void **state)
{
    struct folder *folder = *state;
    nftw(folder->root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    fixture_close(&folder->f);
    free(folder);
    return 0;
}

static const char *at(struct folder *folder, const char *name)
{
    snprintf(folder->path, sizeof folder->path, "%s/%s", folder->root, name);
    return folder->path;
}

static int count_entries(const char *path)
{
    int count = -2;
    DIR *dir = opendir(path);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void test_write_and_read(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    char *text;
    size_t bytes;
    assert_int_equal(file_write_atomic(env, at(folder, "a"), "first", 5), STATUS_OK);
    assert_int_equal(file_write_atomic(env, at(folder, "a"), "second!", 7), STATUS_OK);
    assert_int_equal(file_read(env, at(folder, "a"), 7, &text, &bytes), STATUS_OK);
    assert_int_equal(bytes, 7);
    assert_string_equal(text, "second!");
    mem_free(env, text);
    assert_int_equal(count_entries(folder->root), 1);

    assert_int_equal(file_read(env, at(folder, "a"), 6, &text, &bytes), STATUS_FORMAT);
    assert_null(text);
    assert_contains(log_first_error(env->log), "too large: more than 6 B");
    assert_int_equal(file_write_atomic(env, at(folder, "empty"), NULL, 0), STATUS_OK);
    assert_int_equal(file_read(env, at(folder, "empty"), 0, &text, &bytes), STATUS_OK);
    assert_string_equal(text, "");
    mem_free(env, text);
}

static void test_write_text(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    struct text text;
    char *back;
    size_t bytes;
    text_init(&text, env);
    assert_int_equal(file_write_text(env, at(folder, "a"), &text), STATUS_OK); /* empty */
    text_add(&text, "words");
    assert_int_equal(file_write_text(env, at(folder, "a"), &text), STATUS_OK);
    text_add(&text, " and more");
    text.status = STATUS_MEMORY; /* the text is incomplete: the old file stays */
    assert_int_equal(file_write_text(env, at(folder, "a"), &text), STATUS_MEMORY);
    assert_int_equal(file_read(env, at(folder, "a"), 5, &back, &bytes), STATUS_OK);
    assert_string_equal(back, "words");
    mem_free(env, back);
    text_free(&text);
}

static void test_read_special(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    char *text;
    size_t bytes;
    /* A file that does not report its size in advance. */
    assert_int_equal(file_read(env, "/proc/self/status", 1 << 20, &text, &bytes), STATUS_OK);
    assert_true(bytes > 10 && strlen(text) == bytes);
    mem_free(env, text);
    assert_int_equal(file_read(env, "/dev/zero", 100000, &text, &bytes), STATUS_FORMAT);
    assert_contains(folder->f.heard.line, "it is a device, not a plain file");
    assert_int_equal(file_read(env, folder->root, 100, &text, &bytes), STATUS_FORMAT);
    assert_contains(folder->f.heard.line, "it is a folder");
    assert_int_equal(file_read(env, at(folder, "none"), 100, &text, &bytes), STATUS_IO);
    assert_contains(folder->f.heard.line, "none': No such file or directory");
}

static void test_map(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    struct file_map map;
    assert_int_equal(file_write_atomic(env, at(folder, "a"), "bytes", 5), STATUS_OK);
    assert_int_equal(file_map_open(env, at(folder, "a"), &map), STATUS_OK);
    assert_int_equal(map.bytes, 5);
    assert_memory_equal(map.data, "bytes", 5);
    file_map_close(&map);
    file_map_close(&map);
    assert_int_equal(file_write_atomic(env, at(folder, "a"), "", 0), STATUS_OK);
    assert_int_equal(file_map_open(env, at(folder, "a"), &map), STATUS_OK);
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    file_map_close(&map);
    assert_int_equal(file_map_open(env, at(folder, "none"), &map), STATUS_IO);
    assert_int_equal(file_map_open(env, "/dev/zero", &map), STATUS_FORMAT);
    assert_int_equal(file_map_open(env, folder->root, &map), STATUS_FORMAT);
}

/* Nobody has the other end open, so waiting for it would hang. */
static void test_pipes_and_sockets(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    struct file_map map;
    char *text;
    size_t bytes;
    uint64_t length;
    int fd;
    assert_int_equal(mkfifo(at(folder, "pipe"), 0666), 0);
    assert_int_equal(file_read(env, at(folder, "pipe"), 100, &text, &bytes), STATUS_FORMAT);
    assert_contains(folder->f.heard.line, "pipe': it is a pipe, not a plain file");
    assert_int_equal(file_map_open(env, at(folder, "pipe"), &map), STATUS_FORMAT);
    assert_int_equal(file_open(env, at(folder, "pipe"), &fd, &length), STATUS_FORMAT);
    assert_int_equal(fd, -1);
    assert_int_equal(mknod(at(folder, "socket"), S_IFSOCK | 0666, 0), 0);
    assert_int_equal(file_read(env, at(folder, "socket"), 100, &text, &bytes), STATUS_FORMAT);
    assert_contains(folder->f.heard.line, "it is a socket");
}

/* A descriptor named explicitly (/dev/fd/N) may be a pipe; a link to one may not. */
static void test_named_descriptor(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    char *text, name[32];
    size_t bytes;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "a: 1\n", 5), 5);
    close(ends[1]);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    assert_int_equal(symlink(name, at(folder, "link")), 0);
    assert_int_equal(file_read(env, at(folder, "link"), 100, &text, &bytes), STATUS_FORMAT);
    assert_int_equal(file_read(env, name, 100, &text, &bytes), STATUS_OK);
    assert_string_equal(text, "a: 1\n");
    mem_free(env, text);
    close(ends[0]);
}

/* A file counts as missing only if a directory listing proves it. */
static void test_missing(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    struct input_faults faults = {.times = INPUT_TRIES, .error = EIO};
    assert_int_equal(dir_create(env, at(folder, "below")), STATUS_OK);
    assert_int_equal(file_write_atomic(env, at(folder, "below/a"), "x", 1), STATUS_OK);
    assert_false(file_is_missing(env, folder->root, "below"));
    assert_false(file_is_missing(env, folder->root, "below/a"));
    assert_true(file_is_missing(env, folder->root, "below/b"));
    assert_true(file_is_missing(env, folder->root, "b"));
    assert_true(file_is_missing(env, folder->root, "b/c"));
    assert_false(file_is_missing(env, at(folder, "none"), "b"));
    assert_int_equal(symlink("nowhere", at(folder, "link")), 0);
    assert_false(file_is_missing(env, folder->root, "link"));
    assert_int_equal(file_write_atomic(env, at(folder, "plain"), "x", 1), STATUS_OK);
    assert_true(file_is_missing(env, folder->root, "plain/c"));
    env->input_faults = &faults; /* a listing that fails, at its start and in the middle */
    for (int call = 1; call <= 2; call++) {
        faults.left = call;
        assert_false(file_is_missing(env, folder->root, "b"));
    }
    env->input_faults = NULL;
}

static void test_write_fails(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    assert_int_equal(file_write_atomic(env, at(folder, "no/such"), "x", 1), STATUS_IO);
    assert_contains(log_first_error(env->log), "no/such");

    /* The target is a folder: the temporary file is removed. */
    assert_int_equal(dir_create(env, at(folder, "dir/below")), STATUS_OK);
    assert_int_equal(file_write_atomic(env, at(folder, "dir"), "x", 1), STATUS_IO);
    assert_int_equal(count_entries(folder->root), 1);

    /* A full disk, simulated by a file size limit: the old file stays. */
    assert_int_equal(file_write_atomic(env, at(folder, "old"), "old", 3), STATUS_OK);
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    char block[3000] = {0};
    enum status st = file_write_atomic(env, at(folder, "old"), block, sizeof block);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(st, STATUS_IO);
    assert_contains(folder->f.heard.line, "File too large");
    assert_int_equal(count_entries(folder->root), 2);
    char *text;
    size_t bytes;
    assert_int_equal(file_read(env, at(folder, "old"), 10, &text, &bytes), STATUS_OK);
    assert_string_equal(text, "old");
    mem_free(env, text);

    /* Each allocation fails in turn. */
    st = STATUS_MEMORY;
    for (int n = 1; st != STATUS_OK; n++) {
        assert_true(n < 20);
        mem_fail_at(env->mem, n);
        st = file_write_atomic(env, at(folder, "old"), "new", 3);
        assert_true(st == STATUS_OK || st == STATUS_MEMORY);
        assert_int_equal(mem_total(env->mem), 0);
    }
    mem_fail_at(env->mem, 0);
    assert_int_equal(count_entries(folder->root), 2);
}

static void test_relative(void **state)
{
    struct folder *folder = *state;
    char before[512];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder->root), 0);
    enum status st = file_write_atomic(folder->env, "here", "x", 1);
    bool exists = file_exists("here");
    assert_int_equal(chdir(before), 0);
    assert_int_equal(st, STATUS_OK);
    assert_true(exists);
}

static void test_folders(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    assert_true(dir_is_empty(NULL, at(folder, "a")));
    assert_false(file_exists(at(folder, "a")));
    assert_int_equal(dir_create(env, at(folder, "a/b/c")), STATUS_OK);
    assert_int_equal(dir_create(env, at(folder, "a/b/c/")), STATUS_OK);
    assert_true(file_exists(at(folder, "a/b/c")));
    assert_true(dir_is_empty(NULL, at(folder, "a/b/c")));
    assert_false(dir_is_empty(NULL, at(folder, "a")));
    assert_int_equal(dir_sync(env, at(folder, "a")), STATUS_OK);
    assert_int_equal(dir_sync(env, at(folder, "z")), STATUS_IO);
    assert_int_equal(file_write_atomic(env, at(folder, "file"), "", 0), STATUS_OK);
    assert_int_equal(dir_create(env, at(folder, "file")), STATUS_IO);
    assert_int_equal(dir_create(env, at(folder, "file/below")), STATUS_IO);
    assert_contains(folder->f.heard.line, "cannot create folder");
    assert_int_equal(dir_create(env, ""), STATUS_IO);
    /* a folder that exists but cannot be read: the message gives the reason, not "exists" */
    struct input_faults faults = {.times = 2 * INPUT_TRIES, .error = EIO};
    atomic_store(&faults.left, 1);
    env->input_faults = &faults;
    assert_int_equal(dir_create(env, at(folder, "a")), STATUS_IO);
    env->input_faults = NULL;
    assert_contains(folder->f.heard.line, "': Input/output error");
    assert_false(dir_is_empty(NULL, at(folder, "file")));
    assert_int_equal(errno, ENOTDIR);
    assert_false(dir_is_empty(NULL, at(folder, "a")));
    assert_int_equal(errno, 0);
    faults = (struct input_faults){.times = INPUT_TRIES, .error = ETIMEDOUT};
    atomic_store(&faults.left, 1);
    env->input_faults = &faults;
    assert_false(dir_is_empty(env, at(folder, "a/b/c")));
    assert_int_equal(errno, ETIMEDOUT);
    bool found;
    faults = (struct input_faults){.times = 1, .error = ENOSPC};
    atomic_store(&faults.left, 1);
    assert_int_equal(file_find(env, at(folder, "a"), &found), STATUS_IO);
    assert_contains(folder->f.heard.line, "cannot look at");
    env->input_faults = NULL;
    assert_int_equal(file_find(env, at(folder, "a"), &found), STATUS_OK);
    assert_true(found);
    assert_int_equal(file_find(env, at(folder, "none"), &found), STATUS_OK);
    assert_false(found);
}

static void assert_joined(struct env *env, const char *a, const char *b, const char *wanted)
{
    char *path;
    assert_int_equal(path_join(env, a, b, &path), STATUS_OK);
    assert_string_equal(path, wanted);
    mem_free(env, path);
}

static void test_join(void **state)
{
    struct folder *folder = *state;
    assert_joined(folder->env, "a", "b", "a/b");
    assert_joined(folder->env, "a/", "b", "a/b");
    assert_joined(folder->env, "", "b", "b");
    assert_joined(folder->env, "/", "b", "/b");
}

static void test_glob(void **state)
{
    struct folder *folder = *state;
    struct env *env = folder->env;
    struct path_list list;
    static const char *const names[] = {"b10.bin", "b9.bin", "B.bin", "other", "odd[1].bin"};
    for (int i = 0; i < 5; i++)
        assert_int_equal(file_write_atomic(env, at(folder, names[i]), "", 0), STATUS_OK);
    assert_int_equal(path_glob(env, at(folder, "b*.bin"), &list), STATUS_OK);
    assert_int_equal(list.count, 2);
    assert_string_equal(strrchr(list.paths[0], '/'), "/b10.bin");
    assert_string_equal(strrchr(list.paths[1], '/'), "/b9.bin");
    path_list_free(env, &list);
    assert_int_equal(path_glob(env, at(folder, "other"), &list), STATUS_OK);
    assert_int_equal(list.count, 1);
    path_list_free(env, &list);
    assert_int_equal(path_glob(env, at(folder, "odd[1].bin"), &list), STATUS_OK);
    path_list_free(env, &list);
    assert_int_equal(path_glob(env, at(folder, "none"), &list), STATUS_IO);
    assert_int_equal(path_glob(env, at(folder, "none*"), &list), STATUS_IO);
    assert_contains(folder->f.heard.line, "no file matches");

    enum status st = STATUS_MEMORY;
    for (int n = 1; st != STATUS_OK; n++) {
        assert_true(n < 20);
        mem_fail_at(env->mem, n);
        st = path_glob(env, at(folder, "b*"), &list);
    }
    path_list_free(env, &list);
}

int main(void)
{
#define FILE_TEST(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)
    const struct CMUnitTest tests[] = {
        FILE_TEST(test_write_and_read),
        FILE_TEST(test_write_text),
        FILE_TEST(test_read_special),
        FILE_TEST(test_map),
        FILE_TEST(test_pipes_and_sockets),
        FILE_TEST(test_named_descriptor),
        FILE_TEST(test_missing),
        FILE_TEST(test_write_fails),
        FILE_TEST(test_relative),
        FILE_TEST(test_folders),
        FILE_TEST(test_join),
        FILE_TEST(test_glob),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
