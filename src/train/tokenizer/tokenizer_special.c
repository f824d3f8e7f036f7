/* tokenizer_special -- special tokens, and the files next to tokenizer.json that name them.
 *
 *     config.json              bos_token_id, eos_token_id (an id or a list), pad_token_id
 *     generation_config.json   eos_token_id: where generation stops
 *     tokenizer.json           post_processor: a template with the token before every text
 *     tokenizer_config.json    without one: add_bos_token; bos_token and eos_token by name
 *
 * All of them but config.json are kept as they are, with special_tokens_map.json,
 * added_tokens.json and chat_template.jinja, so that a model directory that is written with the
 * tokenizer has them again. A file that is not valid JSON is ignored with a warning: it need not
 * belong to the tokenizer. An id that is not an added token is kept, but not used.
 */
#include "base/file.h"
#include "base/json_doc.h"
#include "train/tokenizer/tokenizer_impl.h"

static const size_t FILE_LIMIT = (size_t)16 << 20;

/* In the order of the enum in tokenizer_impl.h. */
static const char *const kept_names[SPECIAL_FILES] = {
    "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json",      "chat_template.jinja",
};

static bool is_added(const struct tokenizer *t, int64_t id)
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < t->added[pass].count; i++)
            if (t->added[pass].list[i].id == id)
                return true;
    return false;
}

/* The added token with this content; -1 if there is none. */
static int32_t find_added(const struct tokenizer *t, const char *content)
{
    size_t bytes = strlen(content);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < t->added[pass].count; i++) {
            int32_t id = t->added[pass].list[i].id;
            if (token_is(&t->vocab, &t->vocab.tokens[id], content, bytes))
                return id;
        }
    return -1;
}

/* --- lists of ids ----------------------------------------------------------------------------- */

static void add_id(struct tokenizer_ids *list, int32_t id)
{
    for (int i = 0; i < list->count; i++)
        if (list->ids[i] == id)
            return;
    if (list->count < TOKENIZER_IDS)
        list->ids[list->count++] = id;
}

static bool has_id(const struct tokenizer_ids *list, int32_t id)
{
    for (int i = 0; i < list->count; i++)
        if (list->ids[i] == id)
            return true;
    return false;
}

/* The id, or the ids of a list, under `key`, whatever tokens they are. */
static struct tokenizer_ids read_ids(const json_t *root, const char *key)
{
    struct tokenizer_ids list = {0};
    const json_t *value = json_object_get(root, key);
    size_t count = json_is_array(value) ? json_array_size(value) : 1;
    for (size_t i = 0; i < count && list.count < TOKENIZER_IDS; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        int64_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id >= 0 && id <= INT32_MAX)
            list.ids[list.count++] = (int32_t)id;
    }
    return list;
}

static int32_t first_id(struct tokenizer_ids list)
{
    return list.count > 0 ? list.ids[0] : -1;
}

/* Those that are added tokens, each once. */
static struct tokenizer_ids usable(const struct tokenizer *t, const char *file, const char *key,
                                   struct tokenizer_ids list)
{
    struct tokenizer_ids good = {0};
    for (int i = 0; i < list.count; i++)
        if (is_added(t, list.ids[i]))
            add_id(&good, list.ids[i]);
        else
            log_warn(t->env, "%s: %s %d is not an added token of tokenizer.json; it is not used",
                     file, key, (int)list.ids[i]);
    return good;
}

/* "bos_token": "<s>", or an object with its content. */
static int32_t read_named(const struct tokenizer *t, const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value) ? find_added(t, json_string_value(value)) : -1;
}

/* --- tokenizer.json --------------------------------------------------------------------------- */

void special_init(struct tokenizer *t)
{
    const struct token_list *before = &t->template[0];
    t->special = (struct tokenizer_special){.bos = -1, .pad = -1};
    t->special.begin = before->count > 0 && is_added(t, before->ids[0]) ? before->ids[0] : -1;
    if (t->eot >= 0) {
        add_id(&t->special.eos, t->eot);
        add_id(&t->special.stops, t->eot);
    }
}

/* --- the files next to it --------------------------------------------------------------------- */

/* Parse a file of the folder; all zero if it is missing or not a JSON object. */
static enum status open_json(struct env *env, const char *name, const char *text, size_t bytes,
                             struct json_doc *doc)
{
    /* tokenizer_config.json has integers of any size, such as 1e30 written out; no ids. */
    bool huge = strcmp(name, "tokenizer_config.json") == 0;
    const struct json_rules rules = {
        .values = 1000000, .lists = 500000, .flags = huge ? JSON_DECODE_INT_AS_REAL : 0};
    *doc = (struct json_doc){0};
    if (!text)
        return STATUS_OK;
    enum status st = json_doc_open(env, text, bytes, &rules, doc);
    if (st != STATUS_FORMAT)
        return st;
    log_warn(env, "%s next to tokenizer.json is %s (line %d); its special tokens are not used",
             name, json_doc_fault(doc), doc->error.line);
    json_doc_close(doc);
    *doc = (struct json_doc){0};
    return STATUS_OK;
}

/* What the files say, in the order of precedence; t->eot and t->special have what tokenizer.json
 * says. */
static void combine(struct tokenizer *t, const json_t *config, const json_t *generation,
                    const json_t *tokenizer)
{
    struct tokenizer_special *s = &t->special;
    const char *key = "eos_token_id";
    struct tokenizer_ids ends, stops;
    s->eos = read_ids(config, key);
    s->bos = first_id(read_ids(config, "bos_token_id"));
    s->pad = first_id(read_ids(config, "pad_token_id"));
    ends = usable(t, "config.json", key, s->eos);
    stops = usable(t, "generation_config.json", key, read_ids(generation, key));
    if (ends.count == 0)
        ends = stops;
    if (ends.count == 0 && read_named(t, tokenizer, "eos_token") >= 0)
        add_id(&ends, read_named(t, tokenizer, "eos_token"));
    if (ends.count == 0 && t->eot >= 0)
        add_id(&ends, t->eot);
    t->eot = first_id(ends);
    s->stops = stops.count > 0 ? stops : ends;
    if (s->eos.count == 0)
        s->eos = ends;
    int32_t bos = read_named(t, tokenizer, "bos_token");
    if (s->bos < 0)
        s->bos = bos;
    if (bos < 0 && is_added(t, s->bos))
        bos = s->bos;
    /* A template decides, as in transformers 5. */
    if (s->begin < 0 && json_is_true(json_object_get(tokenizer, "add_bos_token")))
        s->begin = bos;
    s->told = json_object_size(config) > 0;
}

enum status special_read(struct tokenizer *t, const char *config, size_t config_bytes)
{
    struct json_doc docs[3] = {{0}};
    const struct tokenizer_file *files = t->files;
    enum status st;
    TRY_OR(done, open_json(t->env, "config.json", config, config_bytes, &docs[0]));
    for (int i = 0; i < 2; i++)
        TRY_OR(done, open_json(t->env, kept_names[i], files[i].data, files[i].bytes, &docs[i + 1]));
    combine(t, docs[0].root, docs[1].root, docs[2].root);
done:
    for (int i = 0; i < 3; i++)
        json_doc_close(&docs[i]);
    return st;
}

/* *data = NULL if the file does not exist. */
static enum status read_file(struct env *env, const char *folder, const char *name, char **data,
                             size_t *bytes)
{
    char *path;
    *data = NULL;
    TRY(path_join(env, folder, name, &path));
    enum status st = file_exists(path) ? file_read(env, path, FILE_LIMIT, data, bytes) : STATUS_OK;
    mem_free(env, path);
    return st;
}

enum status special_load(struct tokenizer *t, const char *path)
{
    char *folder, *config = NULL;
    size_t bytes = 0;
    enum status st;
    TRY(path_parent(t->env, path, &folder));
    for (int i = 0; i < SPECIAL_FILES; i++) {
        t->files[i].name = kept_names[i];
        TRY_OR(done,
               read_file(t->env, folder, kept_names[i], &t->files[i].data, &t->files[i].bytes));
    }
    TRY_OR(done, read_file(t->env, folder, "config.json", &config, &bytes));
    st = special_read(t, config, bytes);
done:
    mem_free(t->env, config);
    mem_free(t->env, folder);
    return st;
}

void special_free(struct tokenizer *t)
{
    for (int i = 0; i < SPECIAL_FILES; i++)
        mem_free(t->env, t->files[i].data);
}

/* --- using ------------------------------------------------------------------------------------ */

const struct tokenizer_special *tokenizer_special(const struct tokenizer *t)
{
    return &t->special;
}

bool tokenizer_stops(const struct tokenizer *t, int32_t id)
{
    return has_id(&t->special.stops, id);
}

bool tokenizer_has_file(const struct tokenizer *t, const char *name)
{
    for (int i = 0; i < SPECIAL_FILES; i++)
        if (t->files[i].data && strcmp(t->files[i].name, name) == 0)
            return true;
    return false;
}

enum status tokenizer_save_files(const struct tokenizer *t, const char *folder)
{
    for (int i = 0; i < SPECIAL_FILES; i++) {
        char *path;
        if (!t->files[i].data)
            continue;
        TRY(path_join(t->env, folder, t->files[i].name, &path));
        enum status st = file_write_atomic(t->env, path, t->files[i].data, t->files[i].bytes);
        mem_free(t->env, path);
        TRY(st);
    }
    return STATUS_OK;
}

static void add_name(const struct tokenizer *t, int32_t id, struct text *text)
{
    size_t bytes = 0;
    const void *name = tokenizer_token(t, id, &bytes);
    text_add_bytes(text, name ? name : "", bytes);
    text_printf(text, " (%d)", (int)id);
}

void tokenizer_describe_special(const struct tokenizer *t, struct text *text)
{
    const struct tokenizer_special *s = &t->special;
    if (s->begin < 0 && t->eot < 0)
        text_add(text, "no special token begins or ends a text");
    if (s->begin >= 0) {
        text_add(text, "texts begin with ");
        add_name(t, s->begin, text);
        text_add(text, t->eot >= 0 ? " and end with " : "");
    } else if (t->eot >= 0)
        text_add(text, "texts end with ");
    if (t->eot >= 0)
        add_name(t, t->eot, text);
    for (int i = 0; i < s->stops.count; i++)
        if (s->stops.count > 1 || s->stops.ids[i] != t->eot) {
            text_add(text, i == 0 ? "; generation stops at " : ", ");
            add_name(t, s->stops.ids[i], text);
        }
}
