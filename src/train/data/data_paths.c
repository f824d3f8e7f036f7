/* data_paths.c -- paths are made absolute because a run's config.yaml may be read again from
 * another folder, where a relative path would lead to no file or, worse, to a different one. */
#include "train/data/data_paths.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "train/data/dataset_impl.h"
#include "base/named.h"

/* --- existence ------------------------------------------------------------------------------ */

/* data.tokenizer does not always name a file. */
static bool is_tokenizer_file(const char *name)
{
    return *name && strcmp(name, "bytes") != 0 && strncmp(name, "train:", 6) != 0;
}

enum status data_paths_check_tokenizer(struct env *env, const struct data_config *config)
{
    return is_tokenizer_file(config->tokenizer)
               ? named_tokenizer(env, "data.tokenizer", config->tokenizer)
               : STATUS_OK;
}

enum status data_paths_check(struct env *env, const struct data_config *config)
{
    struct data_plan plan;
    TRY(data_plan_make(env, config, &plan));
    for (int i = 0; i < plan.count; i++)
        TRY(named_files(env, *config->path ? "data.path" : "data.mix",
                        data_plan_item(config, i).path));
    if (plan.val)
        TRY(named_files(env, "data.val", plan.val));
    return data_paths_check_tokenizer(env, config);
}

enum status data_paths_held_out(struct env *env, struct data_config *config)
{
    struct data_plan plan;
    TRY(data_plan_make(env, config, &plan));
    if (plan.val) {
        config->path = "";
        config->mix = (struct option_list){0};
    }
    return STATUS_OK;
}

/* --- absolute paths ------------------------------------------------------------------------- */

enum status path_make_absolute(struct env *env, struct options *options, const char **path)
{
    char folder[PATH_MAX], *joined;
    if (**path == '\0' || **path == '/')
        return STATUS_OK;
    if (!getcwd(folder, sizeof folder))
        return FAIL(env, IO, "cannot tell the current folder: %s", strerror(errno));
    TRY(path_join(env, folder, *path, &joined));
    enum status st = options_keep(options, joined, path);
    mem_free(env, joined);
    return st;
}

enum status data_paths_make_absolute(struct env *env, struct options *options,
                                     struct data_config *config)
{
    struct data_plan plan;
    struct data_mix_item *mix = config->mix.items;
    TRY(data_plan_make(env, config, &plan));
    TRY(path_make_absolute(env, options, &config->path));
    for (int i = 0; i < config->mix.count; i++)
        TRY(path_make_absolute(env, options, &mix[i].path));
    if (plan.val)
        TRY(path_make_absolute(env, options, &config->val));
    return is_tokenizer_file(config->tokenizer)
               ? path_make_absolute(env, options, &config->tokenizer)
               : STATUS_OK;
}
