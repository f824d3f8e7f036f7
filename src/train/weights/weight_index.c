/* weight_index.c -- parses the index, with limits for untrusted input. */
#include "train/weights/weight_index.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "base/json_doc.h"
#include "base/named.h"

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The map has one file name per tensor: sort the names and remove duplicates. */
static void keep_each_once(struct weight_index *index)
{
    int kept = 0;
    qsort(index->files, (size_t)index->count, sizeof *index->files, compare_names);
    for (int i = 0; i < index->count; i++) {
        if (kept > 0 && strcmp(index->files[kept - 1], index->files[i]) == 0)
            mem_free(index->env, index->files[i]);
        else
            index->files[kept++] = index->files[i];
    }
    index->count = kept;
}

static enum status read_map(struct weight_index *index, const char *origin, json_t *map)
{
    const char *tensor;
    json_t *value;
    size_t room = json_object_size(map);
    if (!json_is_object(map) || room > INT_MAX)
        return FAIL(index->env, FORMAT, "'%s': there is no weight_map", origin);
    TRY(mem_alloc_array(index->env, MEM_OTHER, "weight index", room, sizeof *index->files,
                        &index->files));
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name || !*name || strpbrk(name, "/\\") || strstr(name, ".."))
            return FAIL(index->env, FORMAT,
                        "'%s': weight_map names '%s', which is no file of this folder", origin,
                        name ? name : "(no text)");
        TRY(mem_strdup(index->env, name, &index->files[index->count]));
        index->count++;
    }
    keep_each_once(index);
    return STATUS_OK;
}

enum status weight_index_parse(struct env *env, const char *data, size_t bytes, const char *origin,
                               struct weight_index *index)
{
    static const struct json_rules rules = {
        .values = 2000000, .lists = 10000, .flags = JSON_REJECT_DUPLICATES};
    struct json_doc doc;
    *index = (struct weight_index){.env = env};
    enum status st = json_doc_open(env, data, bytes, &rules, &doc);
    const char *mistaken = st == STATUS_FORMAT && !doc.too_large ? mistaken_for(data, bytes) : NULL;
    if (mistaken)
        return FAIL(env, FORMAT, "'%s' is %s", origin, mistaken);
    if (st == STATUS_FORMAT)
        return FAIL(env, FORMAT, "'%s' line %d: %s", origin, doc.error.line, doc.error.text);
    TRY(st);
    st = read_map(index, origin, json_object_get(doc.root, "weight_map"));
    json_doc_close(&doc);
    if (st != STATUS_OK)
        weight_index_free(index);
    return st;
}

void weight_index_free(struct weight_index *index)
{
    for (int i = 0; i < index->count; i++)
        mem_free(index->env, index->files[i]);
    if (index->env != NULL)
        mem_free(index->env, index->files);
    *index = (struct weight_index){0};
}
