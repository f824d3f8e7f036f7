/* line_file.c -- appending lines with O_APPEND and one write each; and taking back those that a run
 * wrote after the step from which it goes on, and putting aside those that a crash of the machine has
 * damaged. */
#include "train/run/line_file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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

enum { MOST_NAMED = 8 }; /* lines in one message */

struct line_file {
    struct env *env; /* borrowed */
    char *path;
    int fd;
};

/* What a link leads to may be anybody's. */
static enum status check_link(struct env *env, const char *path)
{
    if (!path_is_link(path))
        return STATUS_OK;
    return FAIL(
        env, CONFIG,
        "'%s' is a symbolic link, and sifr writes to files of its own only; replace the link "
        "by the file, or choose another folder with --out",
        path);
}

enum status line_file_open(struct env *env, const char *path, struct line_file **file)
{
    struct line_file *f;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "line file", sizeof *f, &f));
    f->env = env;
    TRY_OR(undo_self, mem_strdup(env, path, &f->path));
    TRY_OR(undo_path, check_link(env, path));
    f->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (f->fd < 0) {
        st = FAIL(env, IO, "cannot open '%s': %s", path, strerror(errno));
        goto undo_path;
    }
    *file = f;
    return STATUS_OK;
undo_path:
    mem_free(env, f->path);
undo_self:
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

/* The N of a line; -1 = it has none. */
static int64_t step_of(const char *line, size_t bytes)
{
    char digits[24] = "";
    if (bytes <= strlen(start) || memcmp(line, start, strlen(start)) != 0)
        return -1;
    size_t most = bytes - strlen(start);
    memcpy(digits, line + strlen(start), most < sizeof digits - 1 ? most : sizeof digits - 1);
    return digits[0] >= '0' && digits[0] <= '9' ? strtoll(digits, NULL, 10) : -1;
}

/* Does the text of a line read as JSON? */
static const struct json_rules LINE_RULES = {
    .values = 1000000, .lists = 100000, .flags = JSON_ALLOW_NUL};

static enum status check_json(struct env *env, const char *line, size_t bytes, bool *whole)
{
    struct json_doc doc;
    enum status st = json_doc_open(env, line, bytes, &LINE_RULES, &doc);
    *whole = st == STATUS_OK;
    if (*whole)
        json_doc_close(&doc);
    return st == STATUS_FORMAT ? STATUS_OK : st;
}

/* Are these bytes, which are not JSON, the beginning of one record? Then reading fails only where they
 * end; a character may be cut too, which has four bytes at most. */
static enum status check_cut_off(struct env *env, const char *line, size_t bytes, bool *cut_off)
{
    struct json_doc doc;
    *cut_off = false;
    if (memcmp(line, start, bytes < strlen(start) ? bytes : strlen(start)) != 0)
        return STATUS_OK;
    enum status st = json_doc_open(env, line, bytes, &LINE_RULES, &doc);
    if (st == STATUS_OK)
        json_doc_close(&doc);
    if (st != STATUS_FORMAT)
        return st;
    *cut_off = json_error_code(&doc.error) != json_error_end_of_input_expected &&
               (size_t)doc.error.position + 3 >= bytes;
    return STATUS_OK;
}

/* Where the records end that stay: with the last of `step` or before, which may lack its newline. */
static enum status find_cut(struct env *env, const char *data, size_t bytes, int64_t step,
                            size_t *kept, int64_t *last)
{
    *last = 0;
    for (*kept = bytes; *kept > 0;) {
        bool whole = false;
        size_t end = *kept - (data[*kept - 1] == '\n');
        const char *before = memrchr(data, '\n', end);
        size_t begin = before ? (size_t)(before - data) + 1 : 0;
        int64_t found = step_of(data + begin, end - begin);
        if (found >= 0 && found <= step)
            TRY(check_json(env, data + begin, end - begin, &whole));
        if (whole) {
            *last = found;
            break;
        }
        *kept = begin;
    }
    return STATUS_OK;
}

/* What a file is made of once it is cut. */
struct sorted {
    size_t front;        /* bytes before the first line that goes */
    struct text good;    /* all that stays; filled only where a line stays behind one that goes */
    struct text damaged; /* lines that are not records, each with its newline */
    struct text numbers; /* of those lines, the first few */
    int64_t damaged_count;
};

static void sorted_init(struct sorted *sorted, struct env *env, size_t bytes)
{
    sorted->front = bytes;
    sorted->damaged_count = 0;
    text_init(&sorted->good, env);
    text_init(&sorted->damaged, env);
    text_init(&sorted->numbers, env);
}

static void sorted_free(struct sorted *sorted)
{
    text_free(&sorted->numbers);
    text_free(&sorted->damaged);
    text_free(&sorted->good);
}

static void add_line(struct text *text, const char *line, size_t bytes)
{
    text_add_bytes(text, line, bytes);
    text_add(text, "\n");
}

static void add_damaged(struct sorted *sorted, const char *line, size_t bytes, int64_t number)
{
    if (sorted->damaged_count++ < MOST_NAMED)
        text_printf(&sorted->numbers, "%s%" PRId64, sorted->numbers.bytes ? ", " : "", number);
    add_line(&sorted->damaged, line, bytes);
}

/* JSON stays, except for records behind `kept`: they go, as the run writes them again, and so does one
 * that the end of a run has cut off. The rest is damaged. */
static enum status sort_lines(struct env *env, const struct file_map *map, size_t kept,
                              struct sorted *sorted)
{
    const char *data = (const char *)map->data;
    int64_t number = 0;
    for (size_t begin = 0; begin < map->bytes;) {
        bool whole, cut_off = false;
        const char *line = data + begin, *newline = memchr(line, '\n', map->bytes - begin);
        size_t bytes = newline ? (size_t)(newline - line) : map->bytes - begin;
        TRY(check_json(env, line, bytes, &whole));
        if (!whole && !newline)
            TRY(check_cut_off(env, line, bytes, &cut_off));
        number++;
        bool stays = whole && (begin < kept || step_of(line, bytes) < 0);
        if (stays && sorted->front < begin) {
            if (sorted->good.bytes == 0)
                text_add_bytes(&sorted->good, data, sorted->front);
            add_line(&sorted->good, line, bytes);
        }
        if (!stays && sorted->front > begin)
            sorted->front = begin;
        if (!whole && !cut_off)
            add_damaged(sorted, line, bytes, number);
        begin += bytes + 1;
    }
    if (sorted->damaged_count > MOST_NAMED)
        text_printf(&sorted->numbers, " and %" PRId64 " more", sorted->damaged_count - MOST_NAMED);
    TRY(sorted->good.status);
    TRY(sorted->damaged.status);
    return sorted->numbers.status;
}

/* Add lines to the end of a file; they are on the disk then. */
static enum status append(struct env *env, const char *path, const char *lines, size_t bytes)
{
    struct line_file *file = NULL;
    TRY(line_file_open(env, path, &file));
    enum status st = line_file_add(file, lines, bytes);
    if (st != STATUS_OK || !output_sync(env, file->fd))
        st = FAIL(env, IO, "cannot write to '%s': %s", path, strerror(errno));
    line_file_close(file);
    return st;
}

/* Leave in the file what stays; its last line gets its newline, so that the next record has its own. */
static enum status leave(struct env *env, const char *path, const struct file_map *map,
                         const struct sorted *sorted)
{
    if (sorted->good.bytes > 0)
        return file_write_text(env, path, &sorted->good);
    if (sorted->front < map->bytes && truncate(path, (off_t)sorted->front) != 0) /* or not at all */
        return FAIL(env, IO, "cannot shorten '%s': %s", path, strerror(errno));
    if (sorted->front > 0 && map->data[sorted->front - 1] != '\n')
        return append(env, path, "\n", 1);
    return STATUS_OK;
}

/* What is damaged goes to PATH.damaged, and is there before the file is without it. */
static enum status move_damaged(struct env *env, const char *path, const struct file_map *map,
                                const struct sorted *sorted)
{
    struct text side_stream;
    enum status st;
    bool one = sorted->damaged_count == 1;
    text_init(&side_stream, env);
    text_printf(&side_stream, "%s.damaged", path);
    TRY_OR(done, side_stream.status);
    TRY_OR(done,
           append(env, text_string(&side_stream), sorted->damaged.data, sorted->damaged.bytes));
    TRY_OR(done, leave(env, path, map, sorted));
    log_warn(env, "line%s %s of '%s' %s damaged, and %s now in '%s'", one ? "" : "s",
             text_string(&sorted->numbers), path, one ? "was" : "were", one ? "is" : "are",
             text_string(&side_stream));
done:
    text_free(&side_stream);
    return st;
}

/* Sort and leave what stays: what is damaged is said. */
static enum status settle(struct env *env, const char *path, const struct file_map *map,
                          size_t kept)
{
    struct sorted sorted;
    enum status st;
    sorted_init(&sorted, env, map->bytes);
    TRY_OR(done, sort_lines(env, map, kept, &sorted));
    TRY_OR(done, file_map_check(env, path, map->data));
    st = sorted.damaged_count > 0 ? move_damaged(env, path, map, &sorted)
                                  : leave(env, path, map, &sorted);
done:
    sorted_free(&sorted);
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
        st = settle(env, path, &map, kept);
    file_map_close(&map);
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
                               : FAIL(env, IO, "cannot look at '%s': %s", path,
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
        log_info(env, "what was in '%s' is now in '%s'", path, text_string(&aside));
done:
    text_free(&aside);
    return st;
}

/* --- looking -------------------------------------------------------------------------------- */

/* Does a line begin as every version of metrics.c has begun the record of a step? Others write steps
 * and losses too, but not these keys in this order. One that a killed run has cut off has fewer. */
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

/* Is there a record behind a first line that is damaged? One that is JSON tells whose file it is. */
static enum status find_record(struct env *env, const struct file_map *map, bool *found)
{
    const char *data = (const char *)map->data;
    bool whole = false;
    for (size_t begin = 0; begin < map->bytes && !*found;) {
        const char *line = data + begin, *newline = memchr(line, '\n', map->bytes - begin);
        size_t bytes = newline ? (size_t)(newline - line) : map->bytes - begin;
        if (begin == 0 || is_step_record(line, bytes, false))
            TRY(check_json(env, line, bytes, &whole));
        if (begin == 0 && whole)
            return STATUS_OK;
        *found = whole;
        begin += bytes + 1;
    }
    return STATUS_OK;
}

enum status line_file_is_ours(struct env *env, const char *path, bool *ours)
{
    char begin[1024], reason[128]; /* the keys of a record are in it */
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
    const char *data = (const char *)map.data;
    const char *end = map.bytes ? memrchr(data, '\n', map.bytes) : NULL;
    const char *before = end ? memrchr(data, '\n', (size_t)(end - data)) : NULL;
    const char *line = before ? before + 1 : data;
    int64_t found = end ? step_of(line, (size_t)(end - line)) : -1;
    enum status st = file_map_check(env, path, map.data);
    file_map_close(&map);
    *step = found > 0 ? found : 0;
    return st;
}
