/* inspect_model -- the tensors of safetensors files and of Hugging Face directories. */
#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "cli/inspect/inspect.h"
#include "train/weights/model_file.h"
#include "train/weights/safetensors.h"

/* --- tensors -------------------------------------------------------------------------------- */

struct totals {
    int64_t tensors, parameters;
    size_t bytes;
};

static void print_tensor(struct inspection *in, const struct safetensor *t, int name_width)
{
    if (in->json) {
        json_out_open(in->json, NULL, '{');
        json_out_string(in->json, "name", t->name);
        inspect_shape_json(in->json, t);
        json_out_int(in->json, "bytes", (int64_t)t->bytes);
        json_out_close(in->json, '}');
        return;
    }
    char shape[160], human[32];
    inspect_shape(t, shape, sizeof shape);
    console_line(in->cli->console, "  %-*s  %-4s  %-16s %10s", name_width, t->name,
                 safetensors_type_word(t->type), shape, text_human_bytes(human, (double)t->bytes));
}

static void print_tensors(struct inspection *in, const struct safetensors *file,
                          struct totals *totals)
{
    int width = 0; /* of the longest name, at most 60 */
    for (int i = 0; i < safetensors_count(file); i++) {
        int bytes = (int)strlen(safetensors_at(file, i)->name);
        width = bytes > width ? bytes : width;
    }
    for (int i = 0; i < safetensors_count(file); i++) {
        const struct safetensor *t = safetensors_at(file, i);
        print_tensor(in, t, width < 60 ? width : 60);
        totals->tensors++;
        totals->parameters += t->count;
        totals->bytes += t->bytes;
    }
}

static void finish_list(struct inspection *in, const struct totals *totals)
{
    inspect_close_list(in);
    inspect_int(in, "tensors", totals->tensors);
    inspect_int(in, "parameters", totals->parameters);
    inspect_bytes(in, "bytes", totals->bytes);
}

enum status inspect_safetensors(struct inspection *in)
{
    struct totals totals = {0};
    struct safetensors *file;
    TRY(safetensors_open(in->cli->env, in->path, &file));
    inspect_string(in, "kind", "safetensors");
    inspect_open_list(in, "list");
    print_tensors(in, file, &totals);
    safetensors_close(file);
    finish_list(in, &totals);
    return STATUS_OK;
}

/* --- a directory ---------------------------------------------------------------------------- */

/* Shown apart from the other keys, or not at all */
static const char *const apart[] = {"preset",   "arch",       "layers",   "width",   "heads",
                                    "kv_heads", "head_width", "ff",       "context", "vocab",
                                    "tied",     "path",       "init_std", NULL};

static bool is_apart(const char *name)
{
    for (int i = 0; apart[i] != NULL; i++)
        if (strcmp(name, apart[i]) == 0)
            return true;
    return false;
}

/* The value of model.NAME, unless it is 0, no, "" or the first choice */
static void print_key(struct inspection *in, const struct option *option, const char *name,
                      const struct model_config *c)
{
    const void *at = (const char *)c + option->offset;
    if (option->type == OPTION_INT && *(const int64_t *)at != 0)
        inspect_int(in, name, *(const int64_t *)at);
    else if (option->type == OPTION_REAL && *(const double *)at > 0)
        inspect_real(in, name, *(const double *)at);
    else if (option->type == OPTION_BOOL && *(const bool *)at)
        inspect_string(in, name, "yes");
    else if (option->type == OPTION_CHOICE && *(const int *)at > 0)
        inspect_string(in, name, option->choices[*(const int *)at]);
}

/* As the value of a key. A file has numbers, not the text that model_options is bound to. */
static void print_divisors(struct inspection *in, const char *name, const struct rope_list *list)
{
    struct text text;
    if (list->count == 0)
        return;
    text_init(&text, in->cli->env);
    for (int i = 0; i < list->count; i++) {
        text_printf(&text, "%s", i > 0 ? "," : "");
        text_json_real(&text, list->values[i]); /* all digits that a double needs */
    }
    inspect_string(in, name, text_string(&text));
    text_free(&text);
}

static void print_config(struct inspection *in, const struct model_config *c)
{
    inspect_string(in, "kind", "model directory");
    inspect_string(in, "arch", model_arch_word(c->arch));
    inspect_int(in, "layers", c->layers);
    inspect_int(in, "width", c->width);
    inspect_int(in, "heads", c->heads);
    inspect_int(in, "kv_heads", c->kv_heads);
    inspect_int(in, "head_width", c->head_width);
    inspect_int(in, "ff", c->ff);
    inspect_int(in, "context", c->context);
    inspect_int(in, "vocab", c->vocab);
    inspect_string(in, "tied", c->tied ? "yes" : "no");
    for (int i = 0; i < model_options.count; i++) {
        const struct option *option = &model_options.options[i];
        const char *name = option->key + strlen("model.");
        if (!is_apart(name))
            print_key(in, option, name, c);
    }
    print_divisors(in, "rope_short", &c->rope.shorter);
    print_divisors(in, "rope_long", &c->rope.longer);
    if (c->arch == MODEL_SARS)
        inspect_string(in, "rope", c->sars.rope ? "yes" : "no");
}

static void close_files(struct env *env, struct safetensors **files, int count)
{
    for (int i = 0; i < count; i++)
        safetensors_close(files[i]);
    mem_free(env, files);
}

/* All are opened before anything is printed: the answer is the model or an error, not both. */
static enum status open_files(struct env *env, const char *folder, struct safetensors ***files,
                              int *count)
{
    struct path_list paths;
    char *pattern;
    *count = 0;
    TRY(path_join(env, folder, "*.safetensors", &pattern));
    enum status st = path_glob(env, pattern, &paths);
    mem_free(env, pattern);
    TRY(st);
    TRY_OR(undo_paths, mem_alloc_array(env, MEM_OTHER, "open files", (size_t)paths.count,
                                       sizeof **files, files));
    while (st == STATUS_OK && *count < paths.count)
        if ((st = safetensors_open(env, paths.paths[*count], &(*files)[*count])) == STATUS_OK)
            ++*count;
    if (st != STATUS_OK)
        close_files(env, *files, *count);
undo_paths:
    path_list_free(env, &paths);
    return st;
}

enum status inspect_model(struct inspection *in)
{
    struct env *env = in->cli->env;
    struct model_config config = {.path = ""};
    struct safetensors **files;
    struct totals totals = {0};
    int count;
    TRY(model_file_check_folder(env, in->path));
    TRY(model_file_config(env, in->path, &config));
    TRY(model_file_check_weights(env, in->path));
    TRY(open_files(env, in->path, &files, &count));
    print_config(in, &config);
    inspect_open_list(in, "list");
    for (int i = 0; i < count; i++)
        print_tensors(in, files[i], &totals);
    close_files(env, files, count);
    finish_list(in, &totals);
    return STATUS_OK;
}
