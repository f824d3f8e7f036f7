
#include "train/checkpoint/checkpoint_state.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/json_doc.h"

static const char FORMAT_WORD[] = "sifr checkpoint";

/* The largest accepted values. A run adds to counters and multiplies them, so they must stay far
 * below the overflow of 64 bits. */
static const int64_t MOST_STEPS = 1000000000000; /* as train.steps */
static const int64_t MOST_SAMPLES = (int64_t)1 << 60;
static const int64_t MOST_WORKERS = 1 << 24;
static const int64_t MOST_BYTES = (int64_t)1 << 60; /* of a file */

void checkpoint_marker(const char *state_json, size_t bytes, char out[CHECKPOINT_MARKER])
{
    snprintf(out, CHECKPOINT_MARKER, "%s %d\nstate.json %zu %016" PRIx64 "\n", FORMAT_WORD,
             CHECKPOINT_MARKER_VERSION, bytes, (uint64_t)XXH3_64bits(state_json, bytes));
}

bool checkpoint_marker_is(const char *text)
{
    int version, end = 0;
    size_t bytes;
    uint64_t hash;
    if (strncmp(text, FORMAT_WORD, strlen(FORMAT_WORD)) != 0)
        return false;
    text += strlen(FORMAT_WORD);
    return sscanf(text, " %d state.json %zu %" SCNx64 "%n", &version, &bytes, &hash, &end) == 3 &&
           end > 0 && strcmp(text + end, "\n") == 0;
}

/* --- printing ------------------------------------------------------------------------------- */

static void add_string(struct text *text, const char *key, const char *value)
{
    text_printf(text, "\"%s\": ", key);
    text_json_string(text, value, strlen(value));
}

static void add_progress(struct text *text, const struct checkpoint_progress *p)
{
    text_printf(text,
                "  \"step\": %" PRId64 ",\n  \"updates\": %" PRId64 ",\n  \"samples\": %" PRId64
                ",\n  \"tokens\": %" PRId64 ",\n  \"skipped\": %" PRId64
                ",\n  \"skips_in_row\": %" PRId64 ",\n  \"loss\": ",
                p->step, p->updates, p->samples, p->tokens, p->skipped, p->skips_in_row);
    text_json_real(text, p->loss);
    text_add(text, ",\n  \"loss_scale\": ");
    if (p->scaled) {
        text_add(text, "{\"scale\": ");
        text_json_real(text, p->scale.scale);
        text_printf(text, ", \"good_steps\": %d, \"patience\": %d}", p->scale.good_steps,
                    p->scale.patience);
    } else {
        text_add(text, "null");
    }
    if (p->noise.steps > 0) {
        text_printf(text, ",\n  \"noise\": {\"steps\": %" PRId64 ", \"square\": ", p->noise.steps);
        text_json_real(text, p->noise.square);
        text_add(text, ", \"trace\": ");
        text_json_real(text, p->noise.trace);
        text_add(text, "}");
    }
    if (p->evaluation_due)
        text_add(text, ",\n  \"evaluation_due\": true");
    text_add(text, ",\n");
}

/* The kind, and by kind the tensors that have another. */
static void add_optimizers(struct text *text, const struct checkpoint_optimizers *optimizers)
{
    int count = optimizers->other_count;
    text_add(text, "  \"optimizer\": {");
    add_string(text, "kind", optimizer_state_word(optimizers->kind));
    text_add(text, count > 0 ? ", \"tensors\": {" : "");
    for (int i = 0; i < count; i++) {
        const struct checkpoint_other *other = &optimizers->others[i];
        if (i == 0 || other->kind != other[-1].kind)
            text_printf(text, "%s\"%s\": [", i > 0 ? "], " : "", optimizer_state_word(other->kind));
        else
            text_add(text, ", ");
        text_json_string(text, other->tensor, strlen(other->tensor));
    }
    text_add(text, count > 0 ? "]}},\n" : "},\n");
}

static void add_machine(struct text *text, const struct fingerprint *print)
{
    text_printf(text, "  \"machine\": {\"binary\": \"%016" PRIx64 "\", ", print->binary);
    add_string(text, "cpu", print->cpu);
    text_add(text, ", ");
    add_string(text, "blas", print->blas);
    text_add(text, ", ");
    add_string(text, "device", print->device);
    text_add(text, "},\n");
}

static void add_data(struct text *text, const struct data_digest *digest)
{
    text_printf(text,
                "  \"data_files\": {\"kinds\": \"%016" PRIx64 "\", \"files\": %" PRId64
                ", \"whole_bytes\": %" PRIu64 ", \"sampled_bytes\": %" PRIu64
                ", \"samples\": %" PRId64 ", \"xxh3\": \"%016" PRIx64
                "\", \"more_xxh3\": \"%016" PRIx64 "\", \"times_xxh3\": \"%016" PRIx64 "\"},\n",
                digest->kinds, digest->files, digest->whole_bytes, digest->sampled_bytes,
                digest->samples, digest->hash, digest->more, digest->times);
}

static void add_entry(struct text *text, const struct checkpoint_entry *entry)
{
    text_add(text, "    {");
    add_string(text, "name", entry->name);
    text_printf(text, ", \"role\": \"%s\", \"bytes\": %" PRIu64 ", \"pieces\": [",
                checkpoint_role_word(entry->role), entry->bytes);
    for (int64_t i = 0; i < entry->chunk_count; i++)
        text_printf(text, "%s[%" PRIu64 ", \"%016" PRIx64 "\"]", i > 0 ? ", " : "",
                    entry->chunks[i].bytes, entry->chunks[i].hash);
    text_add(text, "]}");
}

void checkpoint_state_print(const struct checkpoint_state *state, struct text *text)
{
    text_printf(text, "{\n  \"format\": \"%s\",\n  \"version\": %d,\n", FORMAT_WORD,
                checkpoint_optimizers_are_adamw(&state->optimizers) ? 1 : CHECKPOINT_VERSION);
    add_progress(text, &state->progress);
    text_add(text, "  ");
    add_string(text, "config", state->config);
    text_printf(text,
                ",\n  \"config_xxh3\": \"%016" PRIx64 "\",\n  \"data_xxh3\": \"%016" PRIx64 "\",\n",
                (uint64_t)XXH3_64bits(state->config, strlen(state->config)), state->data);
    if (state->workers > 0)
        text_printf(text, "  \"workers\": %" PRId64 ",\n", state->workers);
    add_optimizers(text, &state->optimizers);
    if (state->arithmetic > 0)
        text_printf(text, "  \"arithmetic\": %" PRId64 ",\n", state->arithmetic);
    if (state->files.files > 0)
        add_data(text, &state->files);
    add_machine(text, &state->print);
    text_add(text, "  \"files\": [\n");
    for (int i = 0; i < state->entry_count; i++) {
        add_entry(text, &state->entries[i]);
        text_add(text, i + 1 < state->entry_count ? ",\n" : "\n");
    }
    text_add(text, "  ]\n}\n");
}

/* --- parsing -------------------------------------------------------------------------------- */

struct reader {
    struct env *env;
    const char *origin;
};

static enum status read_count(const struct reader *r, const json_t *object, const char *key,
                              int64_t most, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return FAIL(r->env, FORMAT, "'%s': \"%s\" is not a count", r->origin, key);
    if (json_integer_value(value) > most)
        return FAIL(r->env, FORMAT,
                    "'%s': \"%s\" is %" JSON_INTEGER_FORMAT ", the most is %" PRId64, r->origin,
                    key, json_integer_value(value), most);
    *out = json_integer_value(value);
    return STATUS_OK;
}

static enum status read_string(const struct reader *r, const json_t *object, const char *key,
                               const char **out)
{
    *out = json_string_value(json_object_get(object, key));
    return *out ? STATUS_OK : FAIL(r->env, FORMAT, "'%s': \"%s\" is not a text", r->origin, key);
}

static enum status read_words(const struct reader *r, const json_t *object, const char *key,
                              char *out, size_t room)
{
    const char *text;
    TRY(read_string(r, object, key, &text));
    snprintf(out, room, "%s", text);
    return STATUS_OK;
}

static bool parse_hash(const char *text, uint64_t *hash)
{
    char *end;
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *hash = strtoull(text, &end, 16);
    return true;
}

static enum status read_hash(const struct reader *r, const json_t *object, const char *key,
                             uint64_t *out)
{
    if (parse_hash(json_string_value(json_object_get(object, key)), out))
        return STATUS_OK;
    return FAIL(r->env, FORMAT, "'%s': \"%s\" is not a hash", r->origin, key);
}

static enum status read_scale(const struct reader *r, const json_t *object,
                              struct checkpoint_progress *p)
{
    const json_t *scale = json_object_get(object, "loss_scale");
    int64_t good_steps = 0, patience = 0;
    if (json_is_null(scale))
        return STATUS_OK;
    double value = json_number_value(json_object_get(scale, "scale"));
    TRY(read_count(r, scale, "good_steps", INT32_MAX, &good_steps));
    TRY(read_count(r, scale, "patience", INT32_MAX, &patience));
    if (!(value >= LOSS_SCALE_FLOOR && value <= LOSS_SCALE_CEILING) ||
        good_steps >= LOSS_SCALE_WINDOW || patience < 1 || patience > LOSS_SCALE_HYSTERESIS)
        return FAIL(r->env, FORMAT, "'%s': \"loss_scale\" is out of range", r->origin);
    p->scaled = true;
    p->scale = (struct loss_scale){value, (int)good_steps, (int)patience};
    return STATUS_OK;
}

/* Absent where the noise scale was not measured. */
static enum status read_noise(const struct reader *r, const json_t *object,
                              struct noise_scale *noise)
{
    const json_t *value = json_object_get(object, "noise");
    if (!value)
        return STATUS_OK;
    TRY(read_count(r, value, "steps", NOISE_SCALE_STEPS, &noise->steps));
    noise->square = json_number_value(json_object_get(value, "square"));
    noise->trace = json_number_value(json_object_get(value, "trace"));
    if (isfinite(noise->square) && isfinite(noise->trace))
        return STATUS_OK;
    return FAIL(r->env, FORMAT, "'%s': \"noise\" is not finite", r->origin);
}

static enum status read_progress(const struct reader *r, const json_t *root,
                                 struct checkpoint_progress *p)
{
    const json_t *loss = json_object_get(root, "loss");
    TRY(read_count(r, root, "step", MOST_STEPS, &p->step));
    TRY(read_count(r, root, "updates", MOST_STEPS, &p->updates));
    TRY(read_count(r, root, "samples", MOST_SAMPLES, &p->samples));
    TRY(read_count(r, root, "tokens", MOST_SAMPLES, &p->tokens));
    TRY(read_count(r, root, "skipped", MOST_STEPS, &p->skipped));
    TRY(read_count(r, root, "skips_in_row", MOST_STEPS, &p->skips_in_row));
    if (p->updates > p->step)
        return FAIL(r->env, FORMAT, "'%s': more updates than steps", r->origin);
    if (p->skipped > p->step || p->skips_in_row > p->skipped)
        return FAIL(r->env, FORMAT, "'%s': more skipped steps than steps", r->origin);
    p->loss = json_is_number(loss) ? json_number_value(loss) : NAN;
    TRY(read_noise(r, root, &p->noise));
    p->evaluation_due = json_is_true(json_object_get(root, "evaluation_due"));
    return read_scale(r, root, p);
}

static enum status read_machine(const struct reader *r, const json_t *root,
                                struct fingerprint *print)
{
    const json_t *machine = json_object_get(root, "machine");
    TRY(read_hash(r, machine, "binary", &print->binary));
    TRY(read_words(r, machine, "cpu", print->cpu, sizeof print->cpu));
    TRY(read_words(r, machine, "blas", print->blas, sizeof print->blas));
    return read_words(r, machine, "device", print->device, sizeof print->device);
}

static enum status read_data(const struct reader *r, const json_t *data, struct data_digest *digest)
{
    int64_t whole = 0, sampled = 0;
    TRY(read_hash(r, data, "kinds", &digest->kinds));
    TRY(read_count(r, data, "files", MOST_SAMPLES, &digest->files));
    TRY(read_count(r, data, "whole_bytes", MOST_BYTES, &whole));
    TRY(read_count(r, data, "sampled_bytes", MOST_BYTES, &sampled));
    TRY(read_count(r, data, "samples", MOST_SAMPLES, &digest->samples));
    digest->whole_bytes = (uint64_t)whole;
    digest->sampled_bytes = (uint64_t)sampled;
    TRY(read_hash(r, data, "xxh3", &digest->hash));
    TRY(read_hash(r, data, "more_xxh3", &digest->more));
    return read_hash(r, data, "times_xxh3", &digest->times);
}

static enum status read_config(const struct reader *r, const json_t *root,
                               struct checkpoint_state *state)
{
    const char *config;
    uint64_t hash;
    TRY(read_string(r, root, "config", &config));
    TRY(read_hash(r, root, "config_xxh3", &hash));
    if (hash != XXH3_64bits(config, strlen(config)))
        return FAIL(r->env, FORMAT, "'%s': \"config\" is not what its hash says", r->origin);
    TRY(read_hash(r, root, "data_xxh3", &state->data));
    return mem_strdup(r->env, config, &state->config);
}

/* --- parsing: optimizers --------------------------------------------------------------------- */

static enum status read_kind(const struct reader *r, const char *word, enum optimizer_state *kind)
{
    for (int i = 0; word && i < OPTIMIZER_STATES; i++) {
        *kind = (enum optimizer_state)i;
        if (strcmp(optimizer_state_word(*kind), word) == 0)
            return STATUS_OK;
    }
    return FAIL(r->env, FORMAT, "'%s': the optimizer '%s' is not known", r->origin,
                word ? word : "");
}

static enum status read_others(const struct reader *r, enum optimizer_state kind,
                               const json_t *names, struct checkpoint_optimizers *optimizers)
{
    for (size_t i = 0; i < json_array_size(names); i++) {
        const char *name = json_string_value(json_array_get(names, i));
        struct checkpoint_other *other = &optimizers->others[optimizers->other_count];
        if (!name)
            return FAIL(r->env, FORMAT, "'%s': \"optimizer\" has a tensor without a name",
                        r->origin);
        other->kind = kind;
        TRY(mem_strdup(r->env, name, &other->tensor));
        optimizers->other_count++;
    }
    return STATUS_OK;
}

static enum status read_optimizers(const struct reader *r, const json_t *object,
                                   struct checkpoint_optimizers *optimizers)
{
    json_t *tensors = json_object_get(object, "tensors"), *names;
    enum optimizer_state kind;
    size_t count = 0;
    const char *word;
    TRY(read_kind(r, json_string_value(json_object_get(object, "kind")), &optimizers->kind));
    json_object_foreach(tensors, word, names) count += json_array_size(names);
    TRY(mem_alloc_array(r->env, MEM_OTHER, "optimizers", count, sizeof *optimizers->others,
                        &optimizers->others));
    json_object_foreach(tensors, word, names)
    {
        TRY(read_kind(r, word, &kind));
        TRY(read_others(r, kind, names, optimizers));
    }
    return STATUS_OK;
}

/* --- parsing: files ------------------------------------------------------------------------- */

/* Is the name inside the folder, like "model.safetensors" or "optimizer/momentum.safetensors"? */
static bool is_inside(const char *name)
{
    const char *slash = strchr(name, '/');
    return *name && strlen(name) < CHECKPOINT_NAME && name[0] != '.' && name[0] != '/' &&
           !strstr(name, "..") && !strchr(name, '\\') &&
           (!slash || (slash[1] && slash[1] != '.' && !strchr(slash + 1, '/')));
}

static enum status read_role(const struct reader *r, const json_t *object,
                             enum checkpoint_role *role)
{
    const char *word;
    TRY(read_string(r, object, "role", &word));
    for (int i = 0; i < CHECKPOINT_ROLES; i++) {
        if (strcmp(word, checkpoint_role_word((enum checkpoint_role)i)) == 0) {
            *role = (enum checkpoint_role)i;
            return STATUS_OK;
        }
    }
    return FAIL(r->env, FORMAT, "'%s': a file is for '%s', which is not known", r->origin, word);
}

static enum status read_chunks(const struct reader *r, const json_t *list,
                               struct checkpoint_entry *entry)
{
    uint64_t next = 0;
    size_t count = json_array_size(list);
    TRY(mem_alloc_array(r->env, MEM_OTHER, "checkpoint chunks", count, sizeof *entry->chunks,
                        &entry->chunks));
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i), *bytes = json_array_get(item, 0);
        struct checkpoint_chunk *chunk = &entry->chunks[entry->chunk_count++];
        if (json_array_size(item) != 2 || !json_is_integer(bytes) ||
            json_integer_value(bytes) < 1 || json_integer_value(bytes) > CHECKPOINT_CHUNK ||
            !parse_hash(json_string_value(json_array_get(item, 1)), &chunk->hash))
            return FAIL(r->env, FORMAT, "'%s': chunk %zu of '%s' is not [bytes, hash]", r->origin,
                        i, entry->name);
        chunk->begin = next;
        chunk->bytes = (uint64_t)json_integer_value(bytes);
        next += chunk->bytes;
    }
    if (next != entry->bytes)
        return FAIL(r->env, FORMAT,
                    "'%s': the chunks of '%s' are %" PRIu64
                    " bytes together, the file has %" PRIu64,
                    r->origin, entry->name, next, entry->bytes);
    return STATUS_OK;
}

static enum status read_entry(const struct reader *r, const json_t *object,
                              const struct checkpoint_state *state, struct checkpoint_entry *entry)
{
    const char *name;
    int64_t bytes = 0;
    TRY(read_string(r, object, "name", &name));
    if (!is_inside(name))
        return FAIL(r->env, FORMAT, "'%s': '%s' is no file of this folder", r->origin, name);
    for (int i = 0; i + 1 < state->entry_count; i++)
        if (strcmp(state->entries[i].name, name) == 0)
            return FAIL(r->env, FORMAT, "'%s': two files are called '%s'", r->origin, name);
    snprintf(entry->name, sizeof entry->name, "%s", name);
    TRY(read_role(r, object, &entry->role));
    TRY(read_count(r, object, "bytes", MOST_BYTES, &bytes));
    entry->bytes = (uint64_t)bytes;
    return read_chunks(r, json_object_get(object, "pieces"), entry);
}

static enum status read_entries(const struct reader *r, const json_t *list,
                                struct checkpoint_state *state)
{
    size_t count = json_array_size(list);
    if (count == 0 || count > 1 << 20)
        return FAIL(r->env, FORMAT, "'%s': \"files\" is not a list of files", r->origin);
    TRY(mem_alloc_array(r->env, MEM_OTHER, "checkpoint files", count, sizeof *state->entries,
                        &state->entries));
    for (size_t i = 0; i < count; i++) {
        struct checkpoint_entry *entry = &state->entries[state->entry_count++];
        TRY(read_entry(r, json_array_get(list, i), state, entry));
    }
    return STATUS_OK;
}

/* --- parsing: the document ------------------------------------------------------------------ */

static enum status read_all(const struct reader *r, const json_t *root,
                            struct checkpoint_state *state)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    int64_t version = 0;
    if (!format || strcmp(format, FORMAT_WORD) != 0)
        return FAIL(r->env, FORMAT, "'%s' is not the state of a checkpoint", r->origin);
    TRY(read_count(r, root, "version", INT64_MAX, &version));
    if (version < 1)
        return FAIL(r->env, FORMAT, "'%s' has no version", r->origin);
    if (version > CHECKPOINT_VERSION) /* not damaged: an older checkpoint must not replace it */
        return FAIL(r->env, CONFIG,
                    "'%s' is of version %" PRId64 ", and this sifr reads versions up to %d; use "
                    "the sifr that wrote it, or a newer one",
                    r->origin, version, CHECKPOINT_VERSION);
    TRY(read_progress(r, root, &state->progress));
    TRY(read_config(r, root, state));
    if (json_object_get(root, "workers")) /* missing in checkpoints of early versions */
        TRY(read_count(r, root, "workers", MOST_WORKERS, &state->workers));
    if (json_object_get(root, "optimizer")) /* AdamW made earlier ones */
        TRY(read_optimizers(r, json_object_get(root, "optimizer"), &state->optimizers));
    if (json_object_get(root, "arithmetic"))
        TRY(read_count(r, root, "arithmetic", INT32_MAX, &state->arithmetic));
    if (json_object_get(root, "data_files"))
        TRY(read_data(r, json_object_get(root, "data_files"), &state->files));
    TRY(read_machine(r, root, &state->print));
    return read_entries(r, json_object_get(root, "files"), state);
}

enum status checkpoint_state_parse(struct env *env, const char *data, size_t bytes,
                                   const char *origin, struct checkpoint_state *state)
{
    struct reader r = {env, origin};
    /* Each chunk of 4 MiB is one JSON list: these limits allow checkpoints of 32 TiB. */
    static const struct json_rules rules = {
        .values = 32000000, .lists = 8500000, .flags = JSON_REJECT_DUPLICATES};
    struct json_doc doc;
    *state = (struct checkpoint_state){.env = env};
    enum status st = json_doc_open(env, data, bytes, &rules, &doc);
    if (st == STATUS_FORMAT)
        return FAIL(env, FORMAT, "'%s' line %d: %s", origin, doc.error.line, doc.error.text);
    TRY(st);
    st = read_all(&r, doc.root, state);
    json_doc_close(&doc);
    if (st != STATUS_OK)
        checkpoint_state_free(state);
    return st;
}

void checkpoint_state_free(struct checkpoint_state *state)
{
    if (!state->env)
        return;
    for (int i = 0; i < state->entry_count; i++)
        mem_free(state->env, state->entries[i].chunks);
    mem_free(state->env, state->entries);
    checkpoint_optimizers_free(state->env, &state->optimizers);
    mem_free(state->env, state->config);
    *state = (struct checkpoint_state){0};
}
