#include "cli/html_file.h"
#include <stdio.h>
#include <string.h>
#include "base/file.h"

enum { HEAD_BYTES = 1024 };

enum status html_file_check(struct env *env, const char *flag, const char *path,
                            const char *command)
{
    char head[HEAD_BYTES + 1] = "", made[64];
    struct file_map map;
    if (!*path)
        return FAIL(env, USAGE, "--%s is empty: name a file, or omit it", flag);
    if (strcmp(path, "-") == 0)
        return FAIL(env, USAGE, "--%s=- would mix the page with other output: name a file", flag);
    if (dir_exists(path))
        return FAIL(env, CONFIG, "--%s: '%s' is a folder; name a file in it", flag, path);
    if (!path_is_free(path)) {
        TRY(file_map_open(env, path, &map));
        size_t bytes = map.bytes < HEAD_BYTES ? map.bytes : HEAD_BYTES;
        if (bytes > 0)
            memcpy(head, map.data, bytes);
        file_map_close(&map);
        snprintf(made, sizeof made, HTML_MADE_BY("%s"), command);
        if (!strstr(head, made))
            return FAIL(env, CONFIG,
                        "--%s: '%s' exists and is not a page of `sifr %s`: it is not overwritten; "
                        "choose another name",
                        flag, path, command);
    }
    return file_check_parent(env, path);
}
