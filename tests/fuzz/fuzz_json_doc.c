/* Any bytes as JSON: a tree has no more values than were counted, and bad syntax is never reported
 * as a lack of memory. */
#include <stddef.h>
#include <stdint.h>
#include "base/json_doc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static int64_t count_values(json_t *value)
{
    int64_t count = 1;
    const char *key;
    json_t *item;
    size_t i;
    json_array_foreach(value, i, item) count += count_values(item);
    json_object_foreach(value, key, item) count += count_values(item);
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct json_rules rules = {
        .values = 1 << 20, .lists = 1 << 16, .flags = JSON_REJECT_DUPLICATES};
    struct env env;
    struct json_doc doc;
    if (env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    struct json_count count = json_scan_count((const char *)data, bytes);
    bool valid = json_scan_is_valid((const char *)data, bytes);
    enum status st = json_doc_open(&env, (const char *)data, bytes, &rules, &doc);
    CHECK(st == STATUS_OK || st == STATUS_FORMAT);
    CHECK(st != STATUS_OK || valid);
    if (st == STATUS_OK) {
        CHECK_LE(count_values(doc.root), count.values);
        json_doc_close(&doc);
    }
    env_destroy(&env);
    return 0;
}
