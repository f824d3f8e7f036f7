/* test_file_guard -- when a mapped file is truncated, reads continue and file_map_check reports it.
 * Other faults still end the process or reach the handler that was installed before. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "testing.h"
#include "base/file.h"

enum { PAGES = 16 };

static char folder[] = "/tmp/sifr-guard.XXXXXX";
static char path[64];
static size_t page;

static void make_file(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    assert_true(fd >= 0);
    char *text = malloc(page);
    assert_non_null(text);
    memset(text, 'x', page);
    for (int i = 0; i < PAGES; i++)
        assert_int_equal(write(fd, text, page), page);
    free(text);
    close(fd);
}

static size_t count_zeros(const struct file_map *map)
{
    size_t zeros = 0;
    for (size_t i = 0; i < map->bytes; i++)
        zeros += map->data[i] == 0;
    return zeros;
}

/* Run `what` in a process of its own, where no file has been guarded yet. cmocka installs signal
 * handlers again for every test, which sifr does not have. */
static int end_of(void (*what)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, SIG_DFL);
        what();
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void truncation_is_detected(void)
{
    struct env env = testing_env(1);
    struct file_map map, other;
    make_file("other");
    assert_ok(file_map_open(&env, path, &other));
    char other_path[64];
    strcpy(other_path, path);
    make_file("cut");
    assert_ok(file_map_open(&env, path, &map));
    assert_int_equal(count_zeros(&map), 0);
    assert_ok(file_map_check(&env, path, map.data));

    assert_int_equal(truncate(path, (off_t)(2 * page)), 0);
    assert_int_equal(count_zeros(&map), (PAGES - 2) * page);
    assert_int_equal(file_map_check(&env, path, map.data), STATUS_IO);
    assert_int_equal(file_map_check(&env, path, map.data + map.bytes - 1), STATUS_IO);
    assert_non_null(strstr(log_first_error(env.log), path));

    /* still reported when the file has its old length again or is gone: its content was not read */
    assert_int_equal(truncate(path, (off_t)(PAGES * page)), 0);
    assert_int_equal(file_map_check(&env, path, map.data), STATUS_IO);
    unlink(path);
    assert_int_equal(file_map_check(&env, path, map.data), STATUS_IO);

    assert_int_equal(count_zeros(&other), 0);
    assert_ok(file_map_check(&env, other_path, other.data));
    file_map_close(&map);
    file_map_close(&other);
    assert_ok(file_map_check(&env, path, NULL));
    assert_ok(file_map_check(&env, path, &env));
    env_destroy(&env);
}

/* Such a file reads as zeros up to the end of its last page, without any signal. */
static void truncation_inside_a_page_is_detected(void)
{
    struct env env = testing_env(1);
    struct file_map map;
    make_file("inside");
    assert_ok(file_map_open(&env, path, &map));
    assert_int_equal(truncate(path, (off_t)(PAGES * page - 3)), 0);
    assert_int_equal(count_zeros(&map), 3);
    assert_int_equal(file_map_check(&env, path, map.data), STATUS_IO);
    file_map_close(&map);
    env_destroy(&env);
}

/* After another file has taken the name, the map still shows the original file. */
static void replaced_file_stays_complete(void)
{
    struct env env = testing_env(1);
    struct file_map map;
    make_file("replaced");
    assert_ok(file_map_open(&env, path, &map));
    unlink(path);
    int fd = open(path, O_CREAT | O_RDWR | O_EXCL, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(count_zeros(&map), 0);
    assert_ok(file_map_check(&env, path, map.data));
    file_map_close(&map);
    env_destroy(&env);
}

static void *open_and_close(void *user)
{
    struct env env = testing_env(1);
    for (int i = 0; i < 500; i++) {
        struct file_map map;
        assert_ok(file_map_open(&env, user, &map));
        assert_ok(file_map_check(&env, user, map.data));
        file_map_close(&map);
    }
    env_destroy(&env);
    return NULL;
}

static void threads_open_files_during_truncation(void)
{
    struct env env = testing_env(1);
    pthread_t threads[4];
    char name[64];
    make_file("many");
    strcpy(name, path);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, name), 0);
    make_file("cut-meanwhile");
    for (int i = 0; i < 20; i++) {
        struct file_map map;
        assert_int_equal(truncate(path, (off_t)(PAGES * page)), 0);
        assert_ok(file_map_open(&env, path, &map));
        assert_int_equal(truncate(path, 0), 0);
        assert_int_equal(count_zeros(&map), PAGES * page);
        assert_int_equal(file_map_check(&env, path, map.data), STATUS_IO);
        file_map_close(&map);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    env_destroy(&env);
}

/* --- other faults --------------------------------------------------------------------------- */

static _Noreturn void read_unguarded_map(void)
{
    make_file("foreign");
    int fd = open(path, O_RDWR);
    volatile const char *data = mmap(NULL, page, PROT_READ, MAP_SHARED, fd, 0);
    int cut = ftruncate(fd, 0);
    _exit(data[0] + cut);
}

static void on_own_handler(int number)
{
    (void)number;
    _exit(42);
}

static void guard_a_file(void)
{
    struct env env = testing_env(1);
    struct file_map map;
    make_file("guarded");
    assert_ok(file_map_open(&env, path, &map));
}

static void fault_without_handler(void)
{
    guard_a_file();
    read_unguarded_map();
}

static void signal_without_handler(void)
{
    guard_a_file();
    raise(SIGBUS);
}

static void fault_with_handler(void)
{
    signal(SIGBUS, on_own_handler);
    guard_a_file();
    read_unguarded_map();
}

static void test_other_faults_are_unaffected(void **state)
{
    (void)state;
    assert_int_equal(end_of(fault_with_handler), 42);
    assert_int_equal(end_of(fault_without_handler), 128 + SIGBUS);
    assert_int_equal(end_of(signal_without_handler), 128 + SIGBUS);
}

#define TEST(body)                         \
    static void test_##body(void **state)  \
    {                                      \
        (void)state;                       \
        assert_int_equal(end_of(body), 0); \
    }
TEST(truncation_is_detected)
TEST(truncation_inside_a_page_is_detected)
TEST(replaced_file_stays_complete)
TEST(threads_open_files_during_truncation)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_faults_are_unaffected),
        cmocka_unit_test(test_truncation_is_detected),
        cmocka_unit_test(test_truncation_inside_a_page_is_detected),
        cmocka_unit_test(test_replaced_file_stays_complete),
        cmocka_unit_test(test_threads_open_files_during_truncation),
    };
    page = (size_t)sysconf(_SC_PAGESIZE);
    assert_non_null(mkdtemp(folder));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) != 0 || failed;
}
