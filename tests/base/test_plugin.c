/* A plugin that is missing, broken or from another build is refused with the reason and the fix. */
#include "base/plugin.h"
#include <dlfcn.h>
#include <math.h>
#include <unistd.h>
#include "testing.h"

struct folder {
    char path[64], file[128];
};

static int make_folder(void **state)
{
    static struct folder folder;
    snprintf(folder.path, sizeof folder.path, "/tmp/sifr-plugin-XXXXXX");
    assert_non_null(mkdtemp(folder.path));
    snprintf(folder.file, sizeof folder.file, "%s/libsifr-cuda.so", folder.path);
    setenv("SIFR_PLUGIN_FOLDER", folder.path, 1);
    *state = &folder;
    return 0;
}

static int remove_folder(void **state)
{
    struct folder *folder = *state;
    unlink(folder->file);
    rmdir(folder->path);
    unsetenv("SIFR_PLUGIN_FOLDER");
    return 0;
}

static void assert_refused(const char *word)
{
    struct env env = testing_env(1);
    char why[256];
    void *address = NULL;
    assert_false(plugin_look("cuda", "sifr_device_cuda", &address, why, sizeof why));
    assert_non_null(strstr(why, word));
    assert_string_equal(log_first_error(env.log), "");
    assert_int_equal(plugin_find(&env, "cuda", "sifr_device_cuda", &address), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), word));
    assert_null(address);
    env_destroy(&env);
}

static void test_missing(void **state)
{
    (void)state;
    assert_refused("libsifr-cuda.so is not there");
}

static void test_broken(void **state)
{
    const struct folder *folder = *state;
    FILE *file = fopen(folder->file, "w");
    assert_non_null(file);
    fputs("this is no shared object, whatever its name says", file);
    fclose(file);
    assert_refused("LD_LIBRARY_PATH");
}

/* A relative folder depends on the current directory: refused before anything is loaded. */
static void test_relative_folder(void **state)
{
    (void)state;
    const char *const folders[] = {".", "build", "./", "../lib"};
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        setenv("SIFR_PLUGIN_FOLDER", folders[i], 1);
        assert_refused("give an absolute path");
    }
}

/* Any other library will do, since it does not report which build it is from. */
static void test_other_build(void **state)
{
    const struct folder *folder = *state;
    Dl_info library;
    assert_true(dladdr(dlsym(RTLD_DEFAULT, "_cmocka_run_group_tests"), &library) != 0);
    assert_int_equal(symlink(library.dli_fname, folder->file), 0);
    assert_refused("of another build: it is 'unknown'");
    assert_refused(plugin_version());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_missing, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_broken, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_relative_folder, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_other_build, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
