/* fallback -- see the header. */
#include "train/run/fallback.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/file.h"
#include "base/input.h"
#include "base/text.h"

enum { LINE_BYTES = 4096 }; /* of a longer line, so many */

uint64_t fallback_id(struct env *env, const char *run)
{
    char *path, line[LINE_BYTES];
    if (path_join(env, run, "metrics.jsonl", &path) != STATUS_OK)
        return 0;
    struct stat info;
    int fd;
    bool opened = input_open(env, path, &fd, &info) && S_ISREG(info.st_mode);
    ssize_t got = opened ? input_read_at(env, fd, 0, line, sizeof line) : 0;
    if (fd >= 0)
        close(fd);
    mem_free(env, path);
    if (got <= 0)
        return 0;
    const char *end = memchr(line, '\n', (size_t)got);
    if (end == NULL && got < LINE_BYTES)
        return 0;
    return XXH3_64bits(line, end ? (size_t)(end - line) : (size_t)got);
}

/* The last part of a path; `bytes` of it. */
static const char *name_of(const char *path, size_t *bytes)
{
    const char *end = path + strlen(path);
    while (end > path && end[-1] == '/')
        end--;
    const char *begin = end;
    while (begin > path && begin[-1] != '/')
        begin--;
    *bytes = (size_t)(end - begin);
    return begin;
}

enum status fallback_folder(struct env *env, const char *fallback, const char *run, uint64_t id,
                            char **folder)
{
    struct text text;
    size_t bytes;
    const char *name = name_of(run, &bytes);
    if (bytes == 0 || *name == '.') /* "." or "..": not its name */
        name = "run", bytes = 3;
    text_init(&text, env);
    text_add_bytes(&text, name, bytes);
    text_printf(&text, "-%016" PRIx64, id);
    enum status st = text.status;
    if (st == STATUS_OK)
        st = path_join(env, fallback, text_string(&text), folder);
    text_free(&text);
    return st;
}
