/* line_file -- appends lines with O_APPEND and one write each, and removes those that a run wrote
 * after the step from which it resumes. */
#include "train/run/line_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/input.h"
#include "base/json_doc.h"
#include "base/output.h"
#include "base/text.h"
#include "train/run/records.h"

struct line_file {
    struct env *env; /* borrowed */
    char *path;
    int fd;
};

/* The target of a link may belong to somebody else. */
static enum status check_link(struct env *env, const char *path)
{
    if (!path_is_link(path))
        return STATUS_OK;
    return FAIL(env, CONFIG,
                "'%s' is a symbolic link, and sifr writes only to its own files; replace the link "
                "with the file, or choose another folder with --out",
                path);
}

static enum status open_end(struct env *env, const char *path, int *fd)
{
    TRY(check_link(env, path));
    *fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    return *fd < 0 ? FAIL(env, IO, "cannot open '%s': %s", path, strerror(errno)) : STATUS_OK;
}

enum status line_file_open(struct env *env, const char *path, struct line_file **file)
{
    struct line_file *f;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "line file", sizeof *f, &f));
    f->env = env;
    TRY_OR(undo_file, mem_strdup(env, path, &f->path));
    TRY_OR(undo_path, open_end(env, path, &f->fd));
    *file = f;
    return STATUS_OK;
undo_path:
    mem_free(env, f->path);
undo_file:
    mem_free(env, f);
    return st;
}

void line_file_close(struct line_file *file)
{
    if (!file)
        return;
    close(file->fd);
    mem_free(file->env, file->path);
    mem_free(file->env, file);
}

enum status line_file_add(struct line_file *file, const char *line, size_t bytes)
{
    CHECK(bytes > 0 && line[bytes - 1] == '\n');
    return output_append(file->fd, line, bytes) ? STATUS_OK : STATUS_IO;
}

/* --- cutting -------------------------------------------------------------------------------- */

static const char start[] = "{\"step\":"; /* of a record */

/* The N of a record; -1 if the line is not a record. */
static int64_t step_of(const char *line, size_t bytes)
{
    char digits[24] = "";
    if (bytes <= strlen(start) || memcmp(line, start, strlen(start)) != 0)
        return -1;
    size_t most = bytes - strlen(start);
    memcpy(digits, line + strlen(start), most < sizeof digits - 1 ? most : sizeof digits - 1);
    return digits[0] >= '0' && digits[0] <= '9' ? strtoll(digits, NULL, 10) : -1;
}

static const struct json_rules LINE_RULES = {
    .values = 1000000, .lists = 100000, .flags = JSON_ALLOW_NUL};

/* *whole: the line is valid JSON. *cut_off (may be NULL): it is not, but may be the beginning of one
 * record. Then the parser fails only at its end, or up to three bytes before it, where a UTF-8
 * character was cut. */
static enum status check_json(struct env *env, const char *line, size_t bytes, bool *whole,
                              bool *cut_off)
{
    struct json_doc doc;
    enum status st = json_doc_open(env, line, bytes, &LINE_RULES, &doc);
    *whole = st == STATUS_OK;
    if (*whole)
        json_doc_close(&doc);
    if (cut_off)
        *cut_off = st == STATUS_FORMAT &&
                   memcmp(line, start, bytes < strlen(start) ? bytes : strlen(start)) == 0 &&
                   json_error_code(&doc.error) != json_error_end_of_input_expected &&
                   (size_t)doc.error.position + 3 >= bytes;
    return st == STATUS_FORMAT ? STATUS_OK : st;
}

/* *kept = the end of the last record of `step` or an earlier step, *last = its step. That record
 * may lack its newline. */
static enum status find_cut(struct env *env, const char *data, size_t bytes, int64_t step,
                            size_t *kept, int64_t *last)
{
    *last = 0;
    struct line line;
    for (size_t begin = *kept = bytes; line_previous(data, &begin, &line); *kept = begin) {
        bool whole = false;
        int64_t found = step_of(line.text, line.bytes);
        if (found >= 0 && found <= step)
            TRY(check_json(env, line.text, line.bytes, &whole, NULL));
        if (whole) {
            *last = found;
            break;
        }
    }
    return STATUS_OK;
}

/* Collect the lines after `kept` that stay in the file: everything but complete records, which the
 * run writes again, and an incomplete record at the end. *dropped is set if there was such a
 * record. */
static enum status collect_rest(struct env *env, const struct file_map *map, size_t kept,
                                struct text *rest, bool *dropped)
{
    const char *data = (const char *)map->data;
    struct line line;
    for (size_t at = kept; line_next(data, map->bytes, &at, &line);) {
        bool whole, cut_off;
        TRY(check_json(env, line.text, line.bytes, &whole, &cut_off));
        if ((cut_off && !line.ended) || (whole && step_of(line.text, line.bytes) >= 0)) {
            *dropped = true;
        } else {
            text_add_bytes(rest, line.text, line.bytes);
            text_add(rest, "\n");
        }
    }
    return rest->status;
}

/* Add the missing newline of the last line, so that the next record starts a new line. */
static enum status end_line(struct env *env, const char *path)
{
    struct line_file *file = NULL;
    TRY(line_file_open(env, path, &file));
    enum status st = line_file_add(file, "\n", 1);
    if (st != STATUS_OK || !output_sync(env, file->fd))
        st = FAIL(env, IO, "cannot write to '%s': %s", path, strerror(errno));
    line_file_close(file);
    return st;
}

/* Keep the first `kept` bytes of the file and the lines of collect_rest. */
static enum status cut(struct env *env, const char *path, const struct file_map *map, size_t kept)
{
    struct text rest, all;
    bool dropped = false;
    enum status st;
    text_init(&rest, env);
    text_init(&all, env);
    TRY_OR(done, collect_rest(env, map, kept, &rest, &dropped));
    TRY_OR(done, file_map_check(env, path, map->data));
    if (!dropped) {
        st = map->bytes > 0 && map->data[map->bytes - 1] != '\n' ? end_line(env, path) : STATUS_OK;
    } else if (rest.bytes > 0) {
        text_add_bytes(&all, (const char *)map->data, kept);
        text_add_bytes(&all, rest.data, rest.bytes);
        st = all.status == STATUS_OK ? file_write_text(env, path, &all) : all.status;
    } else if (truncate(path, (off_t)kept) != 0) {
        st = FAIL(env, IO, "cannot shorten '%s': %s", path, strerror(errno));
    }
done:
    text_free(&all);
    text_free(&rest);
    return st;
}

enum status line_file_cut(struct env *env, const char *path, int64_t step, int64_t *last)
{
    struct file_map map;
    size_t kept;
    *last = 0;
    TRY(check_link(env, path));
    if (!file_exists(path))
        return STATUS_OK;
    TRY(file_map_open(env, path, &map));
    enum status st = find_cut(env, (const char *)map.data, map.bytes, step, &kept, last);
    if (st == STATUS_OK)
        st = file_map_check(env, path, map.data);
    if (st == STATUS_OK)
        st = cut(env, path, &map, kept);
    file_map_close(&map);
    return st;
}

/* --- extending ------------------------------------------------------------------------------ */

/* *all = the file with `text` in the record; empty = the record is not there, or has `key`. */
static enum status print_extended(struct env *env, const struct file_map *map, int64_t step,
                                  const char *key, const struct text *text, struct text *all)
{
    const char *data = (const char *)map->data;
    struct line line;
    int64_t last;
    size_t at;
    TRY(find_cut(env, data, map->bytes, step, &at, &last));
    if (last != step || !line_previous(data, &at, &line) ||
        memmem(line.text, line.bytes, key, strlen(key)))
        return STATUS_OK;
    const char *brace = memrchr(line.text, '}', line.bytes);
    text_add_bytes(all, data, (size_t)(brace - data));
    text_add_bytes(all, text->data, text->bytes);
    text_add_bytes(all, brace, map->bytes - (size_t)(brace - data));
    return all->status;
}

enum status line_file_extend(struct line_file *file, int64_t step, const char *key,
                             const struct text *text)
{
    struct env *env = file->env;
    struct file_map map;
    struct text all;
    int fd;
    CHECK(step > 0);
    TRY(file_map_open(env, file->path, &map));
    text_init(&all, env);
    enum status st = print_extended(env, &map, step, key, text, &all);
    if (st == STATUS_OK)
        st = file_map_check(env, file->path, map.data);
    file_map_close(&map);
    if (st == STATUS_OK && all.bytes > 0) {
        st = file_write_text(env, file->path, &all);
        if (st == STATUS_OK && (st = open_end(env, file->path, &fd)) == STATUS_OK) {
            close(file->fd); /* of the file before it was replaced */
            file->fd = fd;
        }
    }
    text_free(&all);
    return st;
}

/* --- setting aside -------------------------------------------------------------------------- */

enum status line_file_set_aside(struct env *env, const char *path)
{
    struct stat info;
    struct text aside;
    enum status st;
    char reason[128];
    TRY(check_link(env, path));
    if (!input_stat(env, path, &info))
        return errno == ENOENT ? STATUS_OK
                               : FAIL(env, IO, "cannot stat '%s': %s", path,
                                      input_reason(errno, reason, sizeof reason));
    if (info.st_size == 0)
        return STATUS_OK;
    text_init(&aside, env);
    for (int n = 1; n == 1 || !path_is_free(text_string(&aside)); n++) {
        text_clear(&aside);
        text_printf(&aside, "%s.%d", path, n);
        TRY_OR(done, aside.status);
    }
    st = STATUS_OK;
    if (rename(path, text_string(&aside)) != 0)
        st = FAIL(env, IO, "cannot rename '%s' to '%s': %s", path, text_string(&aside),
                  strerror(errno));
    else
        log_info(env, "'%s' was renamed to '%s'", path, text_string(&aside));
done:
    text_free(&aside);
    return st;
}

/* --- reading -------------------------------------------------------------------------------- */

/* Does a line begin with the keys that every version of metrics.c has written first in the record
 * of a step? Other programs write steps and losses too, but not these keys in this order. A record
 * that was cut off (`cut_off`) has only the first of them. */
static bool is_step_record(const char *line, size_t bytes, bool cut_off)
{
    static const char *const keys[] = {"{\"step\":",
                                       ",\"tokens\":",
                                       ",\"loss\":",
                                       ",\"grad_norm\":",
                                       ",\"lr\":",
                                       ",\"seconds\":",
                                       ",\"tokens_per_second\":",
                                       ",\"mfu\":"};
    static const char value[] = "0123456789.+-enul"; /* a number or null */
    size_t at = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t key = strlen(keys[i]), there = bytes - at < key ? bytes - at : key;
        if (memcmp(line + at, keys[i], there) != 0 || (there < key && !cut_off))
            return false;
        at += there;
        while (at < bytes && memchr(value, line[at], strlen(value)))
            at++;
    }
    return step_of(line, bytes) >= 0;
}

/* Look for a record after a damaged first line. If the first line is valid JSON, the file is not
 * ours. */
static enum status find_record(struct env *env, const struct file_map *map, bool *found)
{
    const char *data = (const char *)map->data;
    bool whole = false;
    struct line line;
    for (size_t at = 0; !*found && line_next(data, map->bytes, &at, &line);) {
        bool first = line.text == data;
        if (first || is_step_record(line.text, line.bytes, false))
            TRY(check_json(env, line.text, line.bytes, &whole, NULL));
        if (first && whole)
            return STATUS_OK;
        *found = whole;
    }
    return STATUS_OK;
}

enum status line_file_is_ours(struct env *env, const char *path, bool *ours)
{
    char begin[1024], reason[128]; /* enough for the keys of a record */
    struct stat info;
    struct file_map map;
    uint64_t whole;
    int fd;
    *ours = false;
    if (!file_exists(path) || (input_stat(env, path, &info) && !S_ISREG(info.st_mode)))
        return STATUS_OK;
    TRY(file_open(env, path, &fd, &whole));
    ssize_t bytes = input_read(env, fd, begin, sizeof begin);
    int error = errno;
    close(fd);
    if (bytes < 0)
        return FAIL(env, IO, "cannot read '%s': %s", path,
                    input_reason(error, reason, sizeof reason));
    const char *end = memchr(begin, '\n', (size_t)bytes);
    *ours = bytes == 0 || is_step_record(begin, end ? (size_t)(end - begin) : (size_t)bytes, !end);
    if (*ours)
        return STATUS_OK;
    TRY(file_map_open(env, path, &map));
    enum status st = find_record(env, &map, ours);
    if (st == STATUS_OK)
        st = file_map_check(env, path, map.data);
    file_map_close(&map);
    return st;
}

enum status line_file_last(struct env *env, const char *path, int64_t *step)
{
    struct file_map map;
    *step = 0;
    if (!file_exists(path))
        return STATUS_OK;
    TRY(file_map_open(env, path, &map));
    struct line line;
    size_t at = map.bytes;
    bool ended = false;
    while (!ended && line_previous((const char *)map.data, &at, &line))
        ended = line.ended;
    int64_t found = ended ? step_of(line.text, line.bytes) : -1;
    enum status st = file_map_check(env, path, map.data);
    file_map_close(&map);
    *step = found > 0 ? found : 0;
    return st;
}
