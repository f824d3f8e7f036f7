/* The training loop on small models: it learns, records what it did, gives the same bits for any
 * number of threads and any recomputation, stops cleanly, and refuses wrong configurations. */
#include "run_rig.h"
#include "threads.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>

/* --- reading records ------------------------------------------------------------------------ */

static char *read_file(struct run_rig *rig, const char *name, size_t *bytes)
{
    char *text;
    assert_int_equal(
        file_read(&rig->scratch.env, scratch_path(&rig->scratch, name), 1 << 26, &text, bytes),
        STATUS_OK);
    return text;
}

struct record {
    double loss, grad_norm, lr, val;
    bool skipped;
};

/* Every line is a JSON object with the expected fields; returns the number of lines. */
static int read_metrics(struct run_rig *rig, const char *name, struct record *records)
{
    size_t bytes;
    int count = 0;
    char *text = read_file(rig, name, &bytes);
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)) != NULL; count++) {
        json_error_t error;
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        assert_non_null(object);
        assert_int_equal(json_integer_value(json_object_get(object, "step")), count + 1);
        assert_true(json_integer_value(json_object_get(object, "tokens")) == (count + 1) * 8 * 24);
        assert_true(json_real_value(json_object_get(object, "seconds")) > 0);
        assert_true(json_real_value(json_object_get(object, "tokens_per_second")) > 0);
        assert_true(json_object_get(object, "mfu") != NULL);
        assert_true(json_is_object(json_object_get(object, "comm")));
        assert_true(json_integer_value(json_object_get(json_object_get(object, "mem"), "params")) >
                    0);
        json_t *val = json_object_get(object, "val");
        records[count] = (struct record){
            .loss = json_number_value(json_object_get(object, "loss")),
            .grad_norm = json_number_value(json_object_get(object, "grad_norm")),
            .lr = json_number_value(json_object_get(object, "lr")),
            .val = val != NULL ? json_number_value(json_object_get(val, "loss")) : NAN,
            .skipped = json_is_true(json_object_get(object, "skipped")),
        };
        json_decref(object);
    }
    mem_free(&rig->scratch.env, text);
    return count;
}

static json_t *read_json(struct run_rig *rig, const char *name)
{
    size_t bytes;
    json_error_t error;
    char *text = read_file(rig, name, &bytes);
    json_t *object = json_loadb(text, bytes, 0, &error);
    assert_non_null(object);
    mem_free(&rig->scratch.env, text);
    return object;
}

/* --- what the callbacks saw ----------------------------------------------------------------- */

struct seen {
    struct trainer_facts facts;
    int steps, evals, samples;
    struct trainer_step last;
    int stop_after; /* 0 = never */
};

static void on_ready(void *user, const struct trainer_facts *facts)
{
    ((struct seen *)user)->facts = *facts;
}

static void on_step(void *user, const struct trainer_step *step)
{
    struct seen *seen = user;
    seen->steps++;
    seen->last = *step;
    assert_int_equal(step->step, seen->steps);
    assert_true(isnan(step->eta_seconds) == (seen->steps <= 2));
}

static void on_eval(void *user, int64_t step, const struct evaluation *evaluation)
{
    ((struct seen *)user)->evals++;
    assert_true(step > 0 && evaluation->tokens > 0 && evaluation->bits_per_byte > 0);
}

static void on_sample(void *user, const struct trainer_sample *sample)
{
    ((struct seen *)user)->samples++;
    assert_string_equal(sample->prompt, "the");
    assert_true(sample->text_bytes > 0);
}

static bool on_ask(void *user)
{
    struct seen *seen = user;
    return seen->stop_after > 0 && seen->steps >= seen->stop_after;
}

static struct trainer_callbacks watch(struct seen *seen)
{
    return (struct trainer_callbacks){.user = seen,
                                      .ready = on_ready,
                                      .step = on_step,
                                      .eval = on_eval,
                                      .sample = on_sample,
                                      .should_stop = on_ask};
}

/* --- tests ---------------------------------------------------------------------------------- */

static void test_a_run_learns_and_records(void **state)
{
    (void)state;
    struct run_rig rig;
    struct seen seen = {0};
    struct trainer_callbacks callbacks = watch(&seen);
    struct trainer_summary summary;
    struct record records[400];
    rig_open(&rig);
    rig_config(&rig, "train.steps=400 train.eval_every=150 train.sample_every=150 "
                     "train.sample_prompt=the train.sample_tokens=12");
    assert_int_equal(rig_train(&rig, "run", false, &callbacks, &summary), STATUS_OK);

    assert_int_equal(read_metrics(&rig, "run/metrics.jsonl", records), 400);
    assert_true(records[0].loss > 5.0 && records[0].loss < 6.5); /* about log 257 */
    assert_true(summary.loss < 1.2);
    assert_true(summary.loss == records[399].loss); /* reads back to the same bits */
    assert_true(records[399].lr == rig.config.train.min_lr && records[19].lr == 1e-2);
    assert_true(!isnan(records[149].val) && !isnan(records[299].val) &&
                records[399].val == summary.val.loss);
    assert_true(isnan(records[150].val));
    assert_true(summary.val.loss < 1.2 && summary.val.perplexity == exp(summary.val.loss));
    assert_float_equal(summary.val.bits_per_byte, summary.val.loss / log(2), 0.05);
    assert_int_equal(seen.steps, 400);
    assert_int_equal(seen.evals, 3);
    assert_int_equal(seen.samples, 3);
    assert_int_equal(seen.facts.parameters, summary.parameters);
    assert_int_equal(seen.facts.step_tokens, 8 * 24);

    json_t *json = read_json(&rig, "run/summary.json");
    assert_string_equal(json_string_value(json_object_get(json, "end")), "done");
    assert_true(json_real_value(json_object_get(json, "loss")) == summary.loss);
    assert_true(json_integer_value(json_object_get(json_object_get(json, "peak_mem"), "params")) >
                0);
    json_decref(json);
    assert_true(file_exists(scratch_path(&rig.scratch, "run/config.yaml")));
    assert_true(file_exists(scratch_path(&rig.scratch, "run/samples.jsonl")));
    assert_true(
        file_exists(scratch_path(&rig.scratch, "run/checkpoints/step-400/model.safetensors")));
    assert_true(file_exists(scratch_path(&rig.scratch, "run/checkpoints/step-400/tokenizer.json")));
    rig_close(&rig);
}

/* Losses and weights of one run with `settings`. */
static int train_for_bits(struct run_rig *rig, const char *settings, struct record *records,
                          char **weights, size_t *bytes)
{
    struct trainer_summary summary;
    rig_config(rig, settings);
    assert_int_equal(rig_train(rig, "run", true, NULL, &summary), STATUS_OK);
    *weights = read_file(rig, "run/checkpoints/step-8/model.safetensors", bytes);
    return read_metrics(rig, "run/metrics.jsonl", records);
}

static void expect_equal_bits(const char *model)
{
    static const char *const variants[] = {"run.threads=1",
                                           "run.threads=2",
                                           "engine.recompute=selective",
                                           "engine.recompute=full run.threads=2",
                                           "run.threads=3",
                                           "run.threads=1 train.eval_every=2 train.sample_every=3"};
    struct run_rig rig;
    struct record first[8], other[8];
    char *weights, *again, settings[512];
    size_t bytes, again_bytes;
    rig_open(&rig);
    snprintf(settings, sizeof settings, "train.steps=8 %s", model);
    assert_int_equal(train_for_bits(&rig, settings, first, &weights, &bytes), 8);
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        snprintf(settings, sizeof settings, "train.steps=8 %s %s", model, variants[v]);
        assert_int_equal(train_for_bits(&rig, settings, other, &again, &again_bytes), 8);
        for (int i = 0; i < 8; i++) {
            assert_memory_equal(&first[i].loss, &other[i].loss, sizeof(double));
            assert_memory_equal(&first[i].grad_norm, &other[i].grad_norm, sizeof(double));
        }
        assert_int_equal(bytes, again_bytes);
        assert_memory_equal(weights, again, bytes);
        mem_free(&rig.scratch.env, again);
    }
    mem_free(&rig.scratch.env, weights);
    rig_close(&rig);
}

static void test_llama_has_equal_bits(void **state)
{
    (void)state;
    expect_equal_bits("");
}

static void test_gpt2_has_equal_bits(void **state)
{
    (void)state;
    expect_equal_bits("model.arch=gpt2 model.kv_heads=4 model.width=36 model.ff=50");
}

/* How the global batch is split changes rounding only. */
static void test_micro_batch_sizes_agree(void **state)
{
    (void)state;
    struct run_rig rig;
    struct record one[8], many[8];
    char *weights;
    size_t bytes;
    rig_open(&rig);
    train_for_bits(&rig, "train.steps=8 train.micro_batch=8", one, &weights, &bytes);
    mem_free(&rig.scratch.env, weights);
    train_for_bits(&rig, "train.steps=8 train.micro_batch=1", many, &weights, &bytes);
    mem_free(&rig.scratch.env, weights);
    for (int i = 0; i < 8; i++)
        assert_float_equal(one[i].loss, many[i].loss, 1e-4);
    rig_close(&rig);
}

static bool stop_now(void *user)
{
    (void)user;
    return true;
}

/* Parameters that were never trained are not saved. */
static void test_stop_before_the_first_step_saves_nothing(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary summary;
    struct trainer_callbacks callbacks = {.should_stop = stop_now};
    rig_open(&rig);
    rig_config(&rig, "train.steps=50");
    assert_int_equal(rig_train(&rig, "run", false, &callbacks, &summary), STATUS_SAVED);
    assert_string_equal(summary.end, "stopped");
    assert_string_equal(summary.checkpoint, "");
    assert_false(file_exists(scratch_path(&rig.scratch, "run/checkpoints")));
    rig_close(&rig);
}

static void test_stop_saves_the_model(void **state)
{
    (void)state;
    struct run_rig rig;
    struct seen seen = {.stop_after = 5};
    struct trainer_callbacks callbacks = watch(&seen);
    struct trainer_summary summary;
    rig_open(&rig);
    rig_config(&rig, "train.steps=1000");
    assert_int_equal(rig_train(&rig, "run", false, &callbacks, &summary), STATUS_SAVED);
    assert_string_equal(summary.end, "stopped");
    assert_int_equal(summary.steps, 5);
    assert_true(file_exists(scratch_path(&rig.scratch, "run/checkpoints/step-5/config.json")));
    json_t *json = read_json(&rig, "run/summary.json");
    assert_string_equal(json_string_value(json_object_get(json, "end")), "stopped");
    json_decref(json);
    rig_close(&rig);
}

/* A run that is stopped in its last evaluation is not done: it evaluates when it resumes. */
static void test_a_stopped_evaluation_is_repeated(void **state)
{
    (void)state;
    struct run_rig rig;
    struct seen seen = {.stop_after = 5}, later = {0};
    struct trainer_callbacks first = watch(&seen), second = watch(&later);
    struct trainer_summary summary;
    rig_open(&rig);
    rig_config(&rig,
               "train.steps=5 train.noise_scale=true train.micro_batch=2 train.global_batch=4");
    assert_int_equal(rig_train(&rig, "run", false, &first, &summary), STATUS_SAVED);
    assert_int_equal(summary.steps, 5);
    assert_int_equal(seen.evals, 0);
    assert_true(isfinite(summary.noise.trace) && summary.noise.steps == 5);
    rig_config(&rig, "train.steps=5 train.micro_batch=2 train.global_batch=4");
    assert_int_equal(rig_train(&rig, "run", false, &second, &summary), STATUS_OK);
    assert_int_equal(later.evals, 1);
    assert_int_equal(summary.noise.steps, 0); /* not measured any more */
    json_t *json = read_json(&rig, "run/summary.json");
    assert_string_equal(json_string_value(json_object_get(json, "end")), "done");
    assert_true(json_is_object(json_object_get(json, "val")));
    json_decref(json);
    rig_close(&rig);
}

/* A stop in an evaluation, in the middle of the run and at its end: the run that resumes completes
 * the record of the step, so that all records have what those of an uninterrupted run have. */
static void test_a_stopped_evaluation_is_recorded(void **state)
{
    (void)state;
    static const char settings[] = "train.steps=6 train.eval_every=3 train.sample_every=0";
    struct run_rig rig;
    struct trainer_summary summary;
    struct record whole[6], cut[6];
    rig_open(&rig);
    rig_config(&rig, settings);
    assert_int_equal(rig_train(&rig, "whole", false, NULL, &summary), STATUS_OK);
    assert_int_equal(read_metrics(&rig, "whole/metrics.jsonl", whole), 6);
    for (int stop = 3; stop <= 6; stop += 3) {
        struct seen seen = {.stop_after = stop};
        struct trainer_callbacks callbacks = watch(&seen);
        const char *folder = stop == 3 ? "middle" : "end";
        char name[64];
        snprintf(name, sizeof name, "%s/metrics.jsonl", folder);
        rig_config(&rig, settings);
        assert_int_equal(rig_train(&rig, folder, false, &callbacks, &summary), STATUS_SAVED);
        assert_int_equal(read_metrics(&rig, name, cut), stop);
        assert_true(isnan(cut[stop - 1].val));
        rig_config(&rig, settings);
        assert_int_equal(rig_train(&rig, folder, false, NULL, &summary), STATUS_OK);
        assert_int_equal(read_metrics(&rig, name, cut), 6);
        for (int i = 0; i < 6; i++)
            assert_true(cut[i].loss == whole[i].loss && isnan(cut[i].val) == ((i + 1) % 3 != 0) &&
                        (isnan(cut[i].val) || cut[i].val == whole[i].val));
    }
    rig_close(&rig);
}

static void test_divergence_is_reported(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary summary;
    struct record records[100];
    char line[512] = "";
    rig_open(&rig);
    env_destroy(&rig.scratch.env);
    assert_int_equal(env_create(&rig.scratch.env, scratch_keep_warning, line, LOG_WARN, 1),
                     STATUS_OK);
    rig_config(&rig, "train.steps=100 train.lr=1000 train.clip=0 train.max_skips=3 train.warmup=0 "
                     "train.weight_decay=1000 train.eval_batches=1");
    assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_DIVERGED);
    scratch_expect(&rig.scratch, "3 steps in a row were skipped");
    assert_string_equal(summary.end, "diverged");
    assert_true(summary.skipped >= 3 && summary.skipped <= summary.steps);
    assert_non_null(strstr(summary.error, "train.max_skips"));
    /* The last warning names step, tensor and element. */
    int64_t step = 0, element = -1;
    char tensor[128] = "";
    assert_int_equal(sscanf(line,
                            "step %" SCNd64
                            " skipped: the gradient of %127s is not finite at element %" SCNd64,
                            &step, tensor, &element),
                     3);
    assert_int_equal(step, summary.steps);
    assert_string_equal(tensor, "model.embed_tokens.weight");
    /* For a loss that is not finite, it also names the samples. */
    char origin[128];
    const struct train_config *train = &rig.config.train;
    int64_t sample = (step - 1) * train->global_batch;
    snprintf(origin, sizeof origin,
             " (loss nan, first in micro-batch 0, samples %" PRId64 " to %" PRId64 ", of rank 0)",
             sample, sample + train->micro_batch - 1);
    if (!strstr(line, origin))
        fail_msg("no '%s' in '%s'", origin, line);
    int count = read_metrics(&rig, "run/metrics.jsonl", records);
    assert_int_equal(count, summary.steps);
    assert_true(records[count - 1].skipped && records[count - 3].skipped);
    assert_string_equal(summary.checkpoint, ""); /* earlier checkpoints are worth more */
    rig_close(&rig);
}

/* Weights that are not finite are not saved at the end, however many steps may be skipped. */
static void test_divergence_at_the_end(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary summary;
    rig_open(&rig);
    rig_config(&rig, "train.steps=8 train.lr=1000 train.clip=0 train.max_skips=100 train.warmup=0 "
                     "train.weight_decay=1000 train.eval_batches=1");
    assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_DIVERGED);
    scratch_expect(&rig.scratch, "the run ends with a loss that is not finite");
    assert_string_equal(summary.end, "diverged");
    assert_string_equal(summary.checkpoint, "");
    rig_close(&rig);
}

/* Lowering the loss scale is not enough: the run ends nevertheless. */
static void test_divergence_ends_an_fp16_run(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary summary;
    rig_open(&rig);
    rig_config(&rig, "train.steps=100 train.lr=1000 train.clip=0 train.max_skips=3 train.warmup=0 "
                     "train.weight_decay=1000 train.eval_batches=1 precision.mode=fp16");
    assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_DIVERGED);
    assert_true(summary.skipped >= 3);
    rig_close(&rig);
}

/* Metrics record the loss scale of each step in fp16, and only in fp16. */
static void test_the_loss_scale_is_recorded(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary summary;
    for (int fp16 = 0; fp16 < 2; fp16++) {
        size_t bytes;
        rig_open(&rig);
        rig_config(&rig, fp16 ? "train.steps=2 precision.mode=fp16"
                              : "train.steps=2 precision.mode=bf16");
        assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_OK);
        char *lines = read_file(&rig, "run/metrics.jsonl", &bytes);
        assert_true((strstr(lines, "\"loss_scale\":65536") != NULL) == fp16);
        assert_true((strstr(lines, "loss_scale") != NULL) == fp16);
        mem_free(&rig.scratch.env, lines);
        rig_close(&rig);
    }
}

static void test_fresh_runs_keep_old_folders(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary summary;
    rig_open(&rig);
    rig_config(&rig, "train.steps=1");
    assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_OK);
    /* already complete */
    assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_OK);
    assert_int_equal(summary.steps, 1);
    assert_int_equal(summary.first_step, 1);
    assert_int_equal(rig_train(&rig, "run/", true, NULL, &summary), STATUS_OK);
    assert_int_equal(rig_train(&rig, "run", true, NULL, &summary), STATUS_OK);
    assert_true(file_exists(scratch_path(&rig.scratch, "run.1/summary.json")));
    assert_true(file_exists(scratch_path(&rig.scratch, "run.2/summary.json")));
    assert_true(file_exists(scratch_path(&rig.scratch, "run/summary.json")));

    /* A file in place of a folder is detected before the first step. (Permissions would not do:
     * root may write anywhere.) */
    scratch_text(&rig.scratch, "taken", "");
    assert_int_equal(rig_train(&rig, "taken/run", false, NULL, &summary), STATUS_IO);
    scratch_expect(&rig.scratch, "taken");
    assert_int_equal(summary.steps, 0);
    rig_close(&rig);
}

static void test_too_little_data_is_refused(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary summary;
    char settings[256];
    rig_open(&rig);
    snprintf(settings, sizeof settings, "train.steps=1 data.path=%s",
             scratch_text(&rig.scratch, "short.txt", "too short"));
    rig_config(&rig, settings);
    assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_CONFIG);
    assert_false(file_exists(scratch_path(&rig.scratch, "run")));
    rig_close(&rig);
}

static void test_a_run_starts_from_a_model(void **state)
{
    (void)state;
    struct run_rig rig, next;
    struct trainer_summary summary, resumed;
    struct record records[4];
    char settings[512];
    rig_open(&rig);
    rig_config(&rig, "train.steps=60 data.tokenizer=train:280");
    assert_int_equal(rig_train(&rig, "run", false, NULL, &summary), STATUS_OK);

    rig_open(&next);
    rig_bind(&next);
    snprintf(settings, sizeof settings,
             "data.path=%s model.path=%s train.steps=4 train.micro_batch=8 train.lr=1e-4",
             rig_text(&next.scratch, "text.txt", 300), scratch_path(&rig.scratch, "run"));
    assert_int_equal(rig_resolve(&next, settings), STATUS_OK);
    assert_int_equal(next.config.model.layers, 2);
    assert_int_equal(next.config.model.vocab, tokenizer_vocab(rig.config.tokenizer));
    assert_int_equal(rig_train(&next, "run", false, NULL, &resumed), STATUS_OK);
    assert_int_equal(read_metrics(&next, "run/metrics.jsonl", records), 4);
    assert_true(records[0].loss < summary.loss + 0.3);

    rig_bind(&next);
    snprintf(settings, sizeof settings, "data.path=%s model.path=%s model.layers=3",
             scratch_path(&next.scratch, "text.txt"), rig.scratch.path);
    assert_int_equal(rig_resolve(&next, settings), STATUS_CONFIG);
    scratch_expect(&next.scratch, "model.layers: 3 (the test), but the model at");

    rig_bind(&next);
    snprintf(settings, sizeof settings, "data.path=%s model.path=%s model.tied=%s",
             scratch_path(&next.scratch, "text.txt"), rig.scratch.path,
             rig.config.model.tied ? "no" : "yes");
    assert_int_equal(rig_resolve(&next, settings), STATUS_CONFIG);
    scratch_expect(&next.scratch, "model.tied: ");
    rig_close(&next);
    rig_close(&rig);
}

/* --- two runs at once ----------------------------------------------------------------------- */

struct pair {
    struct run_rig rig;
    const char *settings;
    struct trainer_summary summary;
    enum status st;
};

static void *train_in_thread(void *user)
{
    struct pair *pair = user;
    pair->st = rig_train(&pair->rig, "run", false, NULL, &pair->summary);
    return NULL;
}

static void test_two_trainers_run_at_once(void **state)
{
    (void)state;
    struct pair pairs[2] = {{.settings = "train.steps=10"},
                            {.settings = "train.steps=10 model.arch=gpt2 model.kv_heads=4"}};
    double alone[2];
    for (int i = 0; i < 2; i++) {
        rig_open(&pairs[i].rig);
        rig_config(&pairs[i].rig, pairs[i].settings);
        assert_int_equal(rig_train(&pairs[i].rig, "alone", false, NULL, &pairs[i].summary),
                         STATUS_OK);
        alone[i] = pairs[i].summary.loss;
    }
    threads_run(train_in_thread, pairs, 2, sizeof *pairs);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pairs[i].st, STATUS_OK);
        assert_true(pairs[i].summary.loss == alone[i]);
        rig_close(&pairs[i].rig);
    }
}

/* Whatever allocation fails, the run ends with STATUS_MEMORY and frees everything. */
static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct run_rig rig;
    struct trainer_summary summary;
    int64_t n = 1;
    rig_open(&rig);
    rig_config(&rig, "train.steps=1 model.layers=1 train.sample_every=1 train.sample_tokens=2 "
                     "train.eval_batches=1");
    size_t before = mem_total(rig.scratch.env.mem);
    for (bool failed = true; failed; n++) {
        mem_fail_at(rig.scratch.env.mem, n);
        enum status st = rig_train(&rig, "run", true, NULL, &summary);
        mem_fail_at(rig.scratch.env.mem, 0);
        failed = *log_first_error(rig.scratch.env.log) != '\0';
        assert_true(st == STATUS_MEMORY || st == STATUS_OK); /* OK: the run does not depend on it */
        assert_int_equal(mem_total(rig.scratch.env.mem), before);
        log_error_clear(rig.scratch.env.log);
    }
    assert_true(n > 100);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_learns_and_records),
        cmocka_unit_test(test_llama_has_equal_bits),
        cmocka_unit_test(test_gpt2_has_equal_bits),
        cmocka_unit_test(test_micro_batch_sizes_agree),
        cmocka_unit_test(test_stop_saves_the_model),
        cmocka_unit_test(test_stop_before_the_first_step_saves_nothing),
        cmocka_unit_test(test_a_stopped_evaluation_is_repeated),
        cmocka_unit_test(test_a_stopped_evaluation_is_recorded),
        cmocka_unit_test(test_divergence_is_reported),
        cmocka_unit_test(test_divergence_at_the_end),
        cmocka_unit_test(test_divergence_ends_an_fp16_run),
        cmocka_unit_test(test_the_loss_scale_is_recorded),
        cmocka_unit_test(test_fresh_runs_keep_old_folders),
        cmocka_unit_test(test_too_little_data_is_refused),
        cmocka_unit_test(test_a_run_starts_from_a_model),
        cmocka_unit_test(test_two_trainers_run_at_once),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
