/* made_folder -- a folder that a test fills in place of /, /proc or /sys. Setup and teardown of a
 * test: made_start, made_stop. */
#ifndef TESTS_MADE_FOLDER_H
#define TESTS_MADE_FOLDER_H
#include <sys/stat.h>
#include "testing.h"

static char made_name[] = "made-XXXXXX";

static inline const char *made_folder(void)
{
    return made_name;
}

/* Write `text` into a file of the folder; the folders on its way are made. */
__attribute__((format(printf, 2, 3))) static inline void made_put(const char *text,
                                                                  const char *format, ...)
{
    char path[512];
    va_list args;
    int used = snprintf(path, sizeof path, "%s/", made_name);
    va_start(args, format);
    vsnprintf(path + used, sizeof path - (size_t)used, format, args);
    va_end(args);
    for (char *at = strchr(path, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static inline int made_start(void **state)
{
    (void)state;
    strcpy(made_name, "made-XXXXXX");
    assert_non_null(mkdtemp(made_name));
    return 0;
}

static inline int made_stop(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", made_name);
    assert_int_equal(system(command), 0);
    return 0;
}

#endif
