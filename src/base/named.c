/* named -- stat, glob and lstat, with a message that names the option. */
#include "base/named.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/input.h"

/* The separator after the key in a message; nothing without a key. */
static const char *colon(const char *key)
{
    return *key ? ": " : "";
}

/* In a folder that may not be searched everything would seem to be missing. */
enum status path_exists(struct env *env, const char *key, const char *path)
{
    bool there = file_exists(path);
    if ((!there || dir_exists(path)) && access(path, there ? R_OK | X_OK : F_OK) != 0 &&
        errno == EACCES)
        return FAIL(env, IO, "%s%scannot look %s '%s': Permission denied; ask its owner, or chmod",
                    key, colon(key), there ? "into the folder" : "at", path);
    return there ? STATUS_OK : FAIL(env, CONFIG, "%s%sthere is no '%s'", key, colon(key), path);
}

/* "organization/model" */
static bool is_hub_name(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strchr(path, '/');
    if (!slash || slash == path || !slash[1] || strchr(slash + 1, '/') || *path == '.' ||
        *path == '~')
        return false;
    int bytes = snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    return bytes > 0 && (size_t)bytes < sizeof folder && !file_exists(folder);
}

enum status named_model(struct env *env, const char *key, const char *path)
{
    if (!file_exists(path) && is_hub_name(path))
        return FAIL(env, CONFIG,
                    "%s%sthere is no '%s'; if that is the name of a model on Hugging Face, "
                    "download it first (hf download %s --local-dir DIR) and name the folder",
                    key, colon(key), path, path);
    return path_exists(env, key, path);
}

/* A dangling link. */
static bool leads_nowhere(const char *path)
{
    return !file_exists(path) && path_is_link(path);
}

/* Data files are mapped and may be read several times, so they must be regular files. */
static enum status check_plain(struct env *env, const char *key, const char *path)
{
    struct stat info;
    if (leads_nowhere(path))
        return FAIL(env, CONFIG, "%s%s'%s' is a link that leads nowhere", key, colon(key), path);
    if (stat(path, &info) != 0 || S_ISREG(info.st_mode)) /* stat errors are reported on opening */
        return STATUS_OK;
    return FAIL(env, CONFIG, "%s%s'%s' is %s; name plain files", key, colon(key), path,
                S_ISDIR(info.st_mode) ? "a folder" : "not a plain file");
}

static enum status fail_missing(struct env *env, const char *key, const char *pattern)
{
    char folder[PATH_MAX];
    if (*pattern == '/')
        return FAIL(env, CONFIG, "%s%sno file matches '%s'", key, colon(key), pattern);
    return FAIL(env, CONFIG, "%s%sno file matches '%s', seen from '%s'", key, colon(key), pattern,
                getcwd(folder, sizeof folder) ? folder : "a folder that is gone");
}

enum status named_files(struct env *env, const char *key, const char *pattern)
{
    size_t bytes = strlen(pattern);
    if (dir_exists(pattern))
        return FAIL(env, CONFIG,
                    "%s%s'%s' is a folder; name a file, or several by a quoted glob: '%s%s*.txt'",
                    key, colon(key), pattern, pattern, pattern[bytes - 1] == '/' ? "" : "/");
    if (file_exists(pattern))
        return check_plain(env, key, pattern);
    glob_t found;
    char reason[128];
    if (!input_glob(env, pattern, &found))
        return FAIL(env, IO, "%s%scannot read the folders of '%s': %s", key, colon(key), pattern,
                    input_reason(errno, reason, sizeof reason));
    enum status st = found.gl_pathc == 0 ? fail_missing(env, key, pattern) : STATUS_OK;
    for (size_t i = 0; st == STATUS_OK && i < found.gl_pathc; i++)
        st = check_plain(env, key, found.gl_pathv[i]);
    globfree(&found);
    return st;
}

enum status named_tokenizer(struct env *env, const char *key, const char *name)
{
    char *inside;
    if (strcmp(name, "bytes") == 0)
        return STATUS_OK;
    if (!file_exists(name))
        return fail_missing(env, key, name);
    if (!dir_exists(name))
        return STATUS_OK;
    TRY(path_join(env, name, "tokenizer.json", &inside));
    bool there = file_exists(inside);
    mem_free(env, inside);
    return there ? STATUS_OK
                 : FAIL(env, CONFIG, "%s%sthere is no tokenizer.json in the folder '%s'", key,
                        colon(key), name);
}

enum status named_out(struct env *env, const char *key, const char *path)
{
    struct stat info;
    char *part, *slash;
    enum status st = STATUS_OK;
    TRY(mem_strdup(env, path, &part));
    while (!file_exists(part) && !leads_nowhere(part) && (slash = strrchr(part, '/')))
        *slash = '\0';
    if (leads_nowhere(part))
        st = FAIL(env, CONFIG,
                  "%s: '%s' is a link that leads nowhere; make the folder that it leads to, or "
                  "choose another %s",
                  key, part, key);
    else if (input_stat(env, part, &info) && !S_ISDIR(info.st_mode))
        st = FAIL(env, CONFIG,
                  "%s: '%s' is a file, but a folder will be written there; choose another %s", key,
                  part, key);
    mem_free(env, part);
    return st;
}

const char *mistaken_for(const void *data, size_t bytes)
{
    static const struct {
        const char *begin, *what;
    } kinds[] = {
#define PAGE                                                                             \
    "an HTML page, not the file itself; download that (on Hugging Face the address has " \
    "/resolve/, not /blob/)"
        {"<!doctype html", PAGE},
        {"<html", PAGE},
        {"<head", PAGE},
        {"<!--", PAGE},
        {"<?xml", "XML, not the file itself; download that"},
        {"version https://git-lfs", "a Git LFS pointer, not the file itself; run git lfs pull"},
#undef PAGE
    };
    const char *text = data, *end = text + bytes;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    while (text < end && memchr(" \t\r\n", *text, 4))
        text++;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t length = strlen(kinds[i].begin);
        if ((size_t)(end - text) >= length && strncasecmp(text, kinds[i].begin, length) == 0)
            return kinds[i].what;
    }
    return NULL;
}
