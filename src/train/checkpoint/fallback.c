/* fallback -- names and finds the checkpoint of a run in the fallback folder. */
#include "train/checkpoint/fallback.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "base/file.h"
#include "base/input.h"
#include "base/json_doc.h"
#include "base/text.h"

enum { LINE_BYTES = 4096 }; /* of a longer line only this prefix is hashed */
#define VAL ",\"val\":"
enum { SUMMARY_BYTES = 1 << 20 };

/* An evaluation is the end of a record, and may be added to it later (metrics_evaluation): the hash
 * is that of the record without it. */
static uint64_t hash_record(char *line, size_t bytes)
{
    char *val = memmem(line, bytes, VAL, strlen(VAL));
    if (val) {
        *val = '}';
        bytes = (size_t)(val - line) + 1;
    }
    return XXH3_64bits(line, bytes < LINE_BYTES ? bytes : LINE_BYTES);
}

uint64_t fallback_id(struct env *env, const char *run)
{
    char *path, line[LINE_BYTES + sizeof VAL]; /* VAL may follow the prefix */
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
    return hash_record(line, end ? (size_t)(end - line) : (size_t)got);
}

enum status fallback_folder(struct env *env, const char *fallback, const char *run, uint64_t id,
                            char **folder)
{
    struct text text;
    const char *end = run + strlen(run);
    while (end > run && end[-1] == '/')
        end--;
    const char *name = end; /* the last component of the path */
    while (name > run && name[-1] != '/')
        name--;
    size_t bytes = (size_t)(end - name);
    if (bytes == 0 || *name == '.') /* "." and ".." are not names */
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

/* --- where a run ended ---------------------------------------------------------------------- */

bool fallback_holds(const char *checkpoint)
{
    static const char own[] = "checkpoints"; /* NAME-ID never ends like this: ID is 16 digits */
    const char *slash = strrchr(checkpoint, '/');
    size_t bytes = sizeof own - 1;
    return slash &&
           ((size_t)(slash - checkpoint) < bytes || memcmp(slash - bytes, own, bytes) != 0);
}

static int64_t step_of(const char *checkpoint)
{
    const char *slash = strrchr(checkpoint, '/');
    long long step = -1;
    return sscanf(slash ? slash + 1 : checkpoint, "step-%lld", &step) == 1 ? step : -1;
}

static enum status read_last(struct env *env, const char *summary, const char *than,
                             char **checkpoint)
{
    static const struct json_rules rules = {.values = 100000, .lists = 10000};
    struct json_doc doc;
    char *text;
    size_t bytes;
    TRY(file_read(env, summary, SUMMARY_BYTES, &text, &bytes));
    enum status st = json_doc_open(env, text, bytes, &rules, &doc);
    const char *last =
        st == STATUS_OK ? json_string_value(json_object_get(doc.root, "checkpoint")) : NULL;
    if (last && fallback_holds(last) && dir_exists(last) && step_of(last) > step_of(than))
        st = mem_strdup(env, last, checkpoint);
    json_doc_close(&doc);
    mem_free(env, text);
    return st;
}

enum status fallback_newer(struct env *env, const char *run, const char *than, char **checkpoint)
{
    struct env quiet = *env; /* an unreadable summary is not an error */
    char *path;
    *checkpoint = NULL;
    TRY(path_join(env, run, "summary.json", &path));
    quiet.log = log_create(NULL, NULL, LOG_ERROR);
    if (quiet.log && file_exists(path))
        read_last(&quiet, path, than, checkpoint);
    log_destroy(quiet.log);
    mem_free(env, path);
    return STATUS_OK;
}
