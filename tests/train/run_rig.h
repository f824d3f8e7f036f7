/* run_rig -- a small training run for tests: a text to learn, a configuration from "key=value"
 * settings, a folder to run in. */
#ifndef TESTS_TRAIN_RUN_RIG_H
#define TESTS_TRAIN_RUN_RIG_H
#include "scratch.h"
#include "base/rng.h"
#include "train/config/config.h"
#include "train/trainer.h"

struct run_rig {
    struct scratch scratch;
    struct options *options;
    struct run_config config;
    struct text yaml;
};

/* Sentences from few words and few patterns, which a model of a few thousand parameters learns. */
static inline const char *rig_text(struct scratch *s, const char *name, int sentences)
{
    static const char *const who[] = {"the cat", "a dog", "my sister", "the old man", "nobody"};
    static const char *const does[] = {"sees", "likes", "follows", "forgets"};
    static const char *const what[] = {"the river", "a red house", "the night train", "music"};
    struct rng rng = rng_stream(7, "sentences");
    char path[128];
    snprintf(path, sizeof path, "%s/%s", s->folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < sentences; i++)
        fprintf(file, "%s %s %s.\n", who[rng_below(rng, 3 * (uint64_t)i, 5)],
                does[rng_below(rng, 3 * (uint64_t)i + 1, 4)],
                what[rng_below(rng, 3 * (uint64_t)i + 2, 4)]);
    fclose(file);
    return scratch_path(s, name);
}

static inline void rig_open(struct run_rig *rig)
{
    *rig = (struct run_rig){0};
    scratch_open(&rig->scratch);
}

/* Drop the previous configuration, if any, and bind a fresh one with the settings common to all
 * tests. */
static inline void rig_bind(struct run_rig *rig)
{
    struct env *env = &rig->scratch.env;
    run_config_release(&rig->config);
    options_destroy(rig->options);
    text_free(&rig->yaml);
    text_init(&rig->yaml, env);
    assert_int_equal(options_create(env, &rig->options), STATUS_OK);
    assert_int_equal(run_config_bind(rig->options, &rig->config), STATUS_OK);
}

static inline void rig_close(struct run_rig *rig)
{
    run_config_release(&rig->config);
    options_destroy(rig->options);
    text_free(&rig->yaml);
    scratch_close(&rig->scratch);
}

/* "key=value" */
static inline enum status rig_set(struct run_rig *rig, const char *setting)
{
    char key[64];
    const char *equals = strchr(setting, '=');
    assert_non_null(equals);
    snprintf(key, sizeof key, "%.*s", (int)(equals - setting), setting);
    return options_set(rig->options, key, equals + 1, "the test");
}

/* Apply settings "key=value key=value ..." (no spaces inside a value), then resolve. */
static inline enum status rig_resolve(struct run_rig *rig, const char *settings)
{
    char copy[2048];
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *rest = copy, *word; (word = strtok_r(rest, " ", &rest)) != NULL;)
        TRY(rig_set(rig, word));
    return run_config_resolve(&rig->scratch.env, rig->options, NULL, NULL, &rig->config);
}

static const char rig_small[] =
    "model.arch=llama model.layers=2 model.width=32 model.heads=4 model.kv_heads=2 model.ff=48 "
    "model.context=24 train.micro_batch=4 train.global_batch=8 train.lr=1e-2 run.threads=1 "
    "run.device=cpu ";

/* Bind, then resolve rig_small and `settings` on top of it, with the text as data. */
static inline void rig_config(struct run_rig *rig, const char *settings)
{
    char all[2048];
    char text[128];
    snprintf(text, sizeof text, "%s", rig_text(&rig->scratch, "text.txt", 300));
    rig_bind(rig);
    snprintf(all, sizeof all, "%s data.path=%s %s", rig_small, text, settings);
    assert_int_equal(rig_resolve(rig, all), STATUS_OK);
    options_print_yaml(rig->options, &rig->yaml);
}

static inline enum status rig_train(struct run_rig *rig, const char *folder, bool fresh,
                                    const struct trainer_callbacks *callbacks,
                                    struct trainer_summary *summary)
{
    static const struct trainer_callbacks none = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/%s", rig->scratch.folder, folder);
    struct trainer_target place = {
        .folder = path, .fresh = fresh, .config_yaml = text_string(&rig->yaml)};
    return trainer_run(&rig->scratch.env, &rig->config, NULL, &place,
                       callbacks != NULL ? callbacks : &none, summary);
}

#endif
