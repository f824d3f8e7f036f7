/* config -- resolves the machine, then the model, then the batches. Each part fills in its own
 * fields and rejects conflicts. At the end every field has its final value, so the printed
 * configuration reproduces the run.
 */
#include "train/config/config.h"
#include "train/config/optimizer_config.h"
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/host.h"
#include "base/threads.h"
#include "comm/launcher.h"
#include "comm/comm.h"
#include "train/checkpoint/checkpoint_keep.h"
#include "train/checkpoint/fallback.h"
#include "train/data/data_config.h"
#include "train/weights/model_file.h"
#include "train/models/model_source.h"
#include "base/named.h"
#include "device/gpu_facts.h"
#include "ops/ops.h"
#include "train/data/shard.h"

enum status run_config_bind(struct options *options, struct run_config *config)
{
    *config = (struct run_config){0};
    TRY(options_bind(options, &model_options, &config->model));
    TRY(options_bind(options, &sars_options, &config->model));
    TRY(options_bind(options, &data_options, &config->data));
    TRY(options_bind(options, &train_options, &config->train));
    TRY(options_bind(options, &checkpoint_options, &config->checkpoint));
    TRY(options_bind(options, &optimizer_options, &config->optimizer));
    TRY(options_bind(options, &engine_options, &config->engine));
    TRY(options_bind(options, &parallel_options, &config->parallel));
    TRY(options_bind(options, &precision_options, config));
    TRY(options_bind(options, &ranks_options, &config->ranks));
    TRY(options_bind(options, &offload_options, &config->offload));
    return options_bind(options, &machine_options, &config->machine);
}

enum status run_config_bind_reading(struct options *options, struct run_config *config)
{
    TRY(run_config_bind(options, config));
    config->reading = true;
    return STATUS_OK;
}

enum status run_config_bind_planning(struct options *options, struct run_config *config)
{
    TRY(run_config_bind(options, config));
    config->planning = true;
    return STATUS_OK;
}

void run_config_release(struct run_config *config)
{
    tokenizer_destroy(config->tokenizer);
    config->tokenizer = NULL;
    model_source_close(config->source);
    config->source = NULL;
}

/* --- the machine ---------------------------------------------------------------------------- */

enum status run_device_find(struct env *env, bool planning, int *device, struct device_info *info)
{
    /* A plugin and its libraries need about 90 MiB: do not load them without a driver. */
    bool hopeless = *device == RUN_DEVICE_AUTO && !device_has_driver("cuda");
    if (*device != RUN_DEVICE_CPU && !hopeless) {
        device_look("cuda", -1, info);
        if (info->count > 0)
            device_look("cuda", launcher_gpu(info->count), info);
        if (info->count == 0 && *device == RUN_DEVICE_CUDA && !planning)
            return FAIL(env, CONFIG, "run.device: cuda: %s; run.device=cpu computes here",
                        info->why);
        if (info->count > 0)
            *device = RUN_DEVICE_CUDA;
        if (*device == RUN_DEVICE_CUDA)
            return STATUS_OK;
    }
    *device = RUN_DEVICE_CPU;
    device_look("cpu", 0, info);
    return STATUS_OK;
}

struct compute_config run_device_compute(int device, enum dtype type)
{
    if (device == RUN_DEVICE_CUDA)
        return (struct compute_config){.backend = "cuda", .type = type, .products = type};
    return (struct compute_config){.backend = "cpu", .type = DTYPE_F32, .products = DTYPE_F32};
}

static enum status resolve_machine(struct env *env, struct run_config *config)
{
    struct machine_config *machine = &config->machine;
    int available = machine_cpus();
    if (machine->threads == 0)
        machine->threads = threads_default(1, true).count;
    else if (machine->threads > available)
        log_warn(env, "run.threads: %lld threads will share %d processor%s",
                 (long long)machine->threads, available, available == 1 ? "" : "s");
    env->threads = (int)machine->threads;
    if (!config->planning) /* which may be about another machine */
        TRY(ops_cpu_use(env, machine->kernels));
    return run_device_find(env, config->planning, &machine->device, &config->device);
}

/* --- the tokenizer -------------------------------------------------------------------------- */

/* *path = tokenizer.json in the folder of model.path; NULL if there is none. The caller frees it
 * with mem_free. */
static enum status tokenizer_of_model(const struct model_source *source, char **path)
{
    TRY(model_source_path(source, "tokenizer.json", path));
    if (!file_exists(*path)) {
        mem_free(source->env, *path);
        *path = NULL;
    }
    return STATUS_OK;
}

static enum status resolve_tokenizer(struct env *env, tokenizer_progress_fn *progress, void *user,
                                     struct run_config *config)
{
    const char *named = config->data.tokenizer;
    bool to_learn = data_tokenizer_is_learnt(&config->data);
    bool own = *named != '\0' && !(config->reading && to_learn);
    if (own && to_learn && *config->model.path)
        return FAIL(env, CONFIG,
                    "data.tokenizer: '%s' would give the tokens of the model at model.path other "
                    "meanings; leave it out to use that model's own tokenizer",
                    named);
    if (own)
        return data_tokenizer_create(env, &config->data, progress, user, &config->tokenizer);

    if (config->source) {
        char *path = NULL;
        TRY(tokenizer_of_model(config->source, &path));
        if (path != NULL) {
            enum status st = tokenizer_load(env, path, &config->tokenizer);
            mem_free(env, path);
            return st;
        }
    }
    bool has_text = false;
    TRY(data_has_text(env, &config->data, &has_text));
    if (has_text && *config->model.path)
        return FAIL(env, CONFIG,
                    "data.tokenizer: no tokenizer.json next to the model at '%s'; %sname one, or "
                    "'bytes'",
                    config->model.path, model_file_convert(env, config->source->folder));
    return has_text ? tokenizer_bytes(env, &config->tokenizer) : STATUS_OK;
}

/* Learning may find fewer tokens than data.tokenizer asks for. Only a run finds out; a plan assumes
 * the requested number. */
static enum status plan_learned_vocab(struct env *env, struct run_config *config)
{
    struct model_config *model = &config->model;
    int64_t wanted;
    TRY(data_tokenizer_size(env, &config->data, &wanted));
    if (model->vocab == 0)
        model->vocab = wanted;
    else if (model->vocab < wanted)
        log_warn(env,
                 "model.vocab: %lld is smaller than the %lld tokens that data.tokenizer is to "
                 "learn; sifr train refuses that if the text has as many",
                 (long long)model->vocab, (long long)wanted);
    return STATUS_OK;
}

/* *here: does the tokenizer that a run would use exist on this machine? */
static enum status find_planned_tokenizer(const struct run_config *config, bool *here)
{
    const struct data_config *data = &config->data;
    char *path = NULL;
    if (*data->tokenizer) {
        *here = strcmp(data->tokenizer, "bytes") == 0 || data_tokenizer_is_learnt(data) ||
                file_exists(data->tokenizer);
        return STATUS_OK;
    }
    *here = *data->path && !*data->val && data->mix.count == 0 && file_exists(data->path);
    if (!config->source)
        return STATUS_OK;
    TRY(tokenizer_of_model(config->source, &path));
    *here = *here || path;
    mem_free(config->source->env, path);
    return STATUS_OK;
}

/* A plan reads as little as possible and learns no vocabulary. If the vocabulary size is
 * configured, the files may be missing; a tokenizer that exists is compared with it, as in a
 * run. */
static enum status resolve_planned_vocab(struct env *env, struct run_config *config)
{
    bool told = config->model.vocab > 0 || *config->model.path;
    bool here = *config->data.tokenizer || data_is_given(&config->data);
    if (data_tokenizer_is_learnt(&config->data) && !*config->model.path)
        return plan_learned_vocab(env, config);
    if (told)
        TRY(find_planned_tokenizer(config, &here));
    else if (*config->data.tokenizer)
        TRY(data_paths_check_tokenizer(env, &config->data));
    else if (here)
        TRY(data_paths_check(env, &config->data));
    return here ? resolve_tokenizer(env, NULL, NULL, config) : STATUS_OK;
}

/* --- the model ------------------------------------------------------------------------------ */

static enum status resolve_model_from_file(struct env *env, const struct options *options,
                                           const struct model_source *source,
                                           struct model_config *model)
{
    struct model_config file = *model;
    TRY(model_file_config(env, source->folder, &file));
    file.preset = 0;
    file.path = model->path;

    TRY(model_check_given(env, options, model, &file));
    if (options_is_set(options, "sars.rope") && model->sars.rope != file.sars.rope)
        return FAIL(env, CONFIG,
                    "sars.rope: %s (%s), but the model at '%s' has %s; leave the key out",
                    model->sars.rope ? "true" : "false", options_origin(options, "sars.rope"),
                    model->path, file.sars.rope ? "true" : "false");
    *model = file;
    return model_check(env, model);
}

/* *vocab = the vocabulary size recorded in the first token file; 0 = not recorded. */
static enum status vocab_of_shards(struct env *env, const struct data_config *data, int64_t *vocab)
{
    const struct data_mix_item *mix = data->mix.items;
    const char *pattern = data->mix.count > 0 ? mix[0].path : data->path;
    enum data_format format =
        data->mix.count > 0 ? (enum data_format)mix[0].format : (enum data_format)data->format;
    *vocab = 0;
    TRY(source_detect(env, pattern, format, &format));
    if (format != DATA_TOKENS)
        return STATUS_OK;

    struct path_list list;
    struct shard *shard = NULL;
    TRY(path_glob(env, pattern, &list));
    enum status st = shard_open(env, list.paths[0], SHARD_LLMC, &shard);
    if (st == STATUS_OK)
        *vocab = shard_vocab(shard);
    shard_close(shard);
    path_list_free(env, &list);
    return st;
}

/* The model's vocabulary must cover all tokens of the tokenizer. */
static enum status check_vocab(struct env *env, const struct run_config *config)
{
    int64_t vocab = config->model.vocab;
    if (config->tokenizer == NULL || vocab >= tokenizer_vocab(config->tokenizer))
        return STATUS_OK;
    if (config->source)
        return FAIL(env, CONFIG,
                    "data.tokenizer: the tokenizer has %d tokens, and the vocabulary of the model "
                    "at '%s' is %lld; name the tokenizer that the model was made with",
                    tokenizer_vocab(config->tokenizer), config->model.path, (long long)vocab);
    return FAIL(env, CONFIG,
                "model.vocab: %lld is smaller than the tokenizer's %d tokens; leave the key out or "
                "raise it",
                (long long)vocab, tokenizer_vocab(config->tokenizer));
}

enum status run_config_suit_model(struct env *env, struct options *options,
                                  struct run_config *config)
{
    const struct parallel_config *parallel = &config->parallel;
    const struct model_config *model = &config->model;
    TRY(model_check_keys(env, options, model));
    TRY(model_check_limits(env, model, config->precision == RUN_PRECISION_FP16, parallel->tp,
                           parallel->pp));
    if (!config->reading)
        config->model.freeze = config->train.freeze;
    /* SARS clamps every element of the gradient instead (sars.clamp). */
    if (model->arch == MODEL_SARS && !options_is_set(options, "train.clip"))
        config->train.clip = 0;
    return STATUS_OK;
}

static enum status resolve_model(struct env *env, struct options *options,
                                 struct run_config *config)
{
    struct model_config *model = &config->model;
    if (*model->path && model->preset != 0 && !config->reading)
        return FAIL(env, CONFIG, "model.preset and model.path both define the model; give one");
    if (config->source)
        TRY(resolve_model_from_file(env, options, config->source, model));
    else {
        if (model->vocab == 0 && config->tokenizer != NULL)
            model->vocab = tokenizer_vocab(config->tokenizer);
        if (model->vocab == 0 && data_is_given(&config->data))
            TRY(vocab_of_shards(env, &config->data, &model->vocab));
        TRY(model_resolve(env, options, model));
    }
    TRY(model_check(env, model));
    TRY(check_vocab(env, config));
    TRY(run_config_suit_model(env, options, config));
    bool named = *config->data.tokenizer && !data_tokenizer_is_learnt(&config->data);
    if (!config->source || !config->tokenizer || !named)
        return STATUS_OK;
    return model_tokenizer_compare(env, config->source, model->vocab, config->tokenizer,
                                   config->data.tokenizer);
}

/* --- the batches and the schedule ----------------------------------------------------------- */

static enum status resolve_batches(struct env *env, struct options *options,
                                   struct run_config *config)
{
    struct train_config *train = &config->train;
    if (train->context == 0)
        train->context = config->model.context;
    if (train->context > config->model.context)
        return FAIL(env, CONFIG, "train.context: %lld is more than model.context %lld",
                    (long long)train->context, (long long)config->model.context);
    if (train->global_batch == 0)
        train->global_batch = train->micro_batch;
    if (!config->reading && train->global_batch % train->micro_batch != 0) {
        int64_t up = (train->global_batch / train->micro_batch + 1) * train->micro_batch;
        return FAIL(
            env, CONFIG,
            "train.global_batch: %lld is not a multiple of train.micro_batch %lld; try %lld",
            (long long)train->global_batch, (long long)train->micro_batch, (long long)up);
    }
    config->engine.micro_batch = train->micro_batch;
    config->engine.tokens = train->context;
    config->engine.activations = (enum far_kind)config->offload.activations;
    config->engine.activations_share = config->offload.activations_share;
    config->engine.micro_batches = config->reading ? 0 : train->global_batch / train->micro_batch;
    config->ramp = (struct batch_ramp){.batch = train->global_batch, .context = train->context};
    if (config->reading)
        return STATUS_OK;
    return batch_ramp_parse(options, env, train->batch_ramp, train->micro_batch, &config->ramp);
}

static enum status resolve_schedule(struct env *env, struct train_config *train)
{
    /* No warning for the default value: a run's config.yaml lists it, although nobody asked. */
    if (train->decay >= 0 && train->decay != train->steps / 5 && train->schedule != SCHEDULE_WSD)
        log_warn(env, "train.decay=%lld has no effect with train.schedule=%s; it is for wsd",
                 (long long)train->decay, schedule_words[train->schedule]);
    if (train->min_lr < 0)
        train->min_lr = train->lr / 10;
    if (train->warmup < 0)
        train->warmup = train->steps / 20 < 1000 ? train->steps / 20 : 1000;
    if (train->decay < 0)
        train->decay = train->steps / 5;
    if (train->warmup > train->steps)
        return FAIL(env, CONFIG, "train.warmup: %lld is more than train.steps %lld",
                    (long long)train->warmup, (long long)train->steps);
    if (train->schedule == SCHEDULE_WSD && train->warmup + train->decay > train->steps)
        return FAIL(
            env, CONFIG,
            "train.warmup %lld and train.decay %lld together are more than train.steps %lld",
            (long long)train->warmup, (long long)train->decay, (long long)train->steps);
    if (train->min_lr > train->lr)
        return FAIL(env, CONFIG, "train.min_lr: %g is more than train.lr %g", train->min_lr,
                    train->lr);
    return STATUS_OK;
}

static enum status check_time(struct env *env, const char *key, const char *time)
{
    double seconds;
    if (deadline_parse(time, &seconds))
        return STATUS_OK;
    return FAIL(env, CONFIG, "%s: '%s' is not a time; write seconds, or 2h30m", key, time);
}

/* May equal bits be traded for speed? True for training on a GPU without run.deterministic. */
static bool is_fast(const struct run_config *config)
{
    return !config->machine.deterministic && config->machine.device == RUN_DEVICE_CUDA &&
           !config->reading;
}

/* Warn about what may change bits on a GPU, judged by the configuration alone: the number of ranks
 * is not known here. */
static void tell_fast(struct env *env, const struct run_config *config)
{
    bool wide = config->precision == RUN_PRECISION_FP32;
    log_warn(env,
             "run.deterministic: false: the same run may give other bits: products take the "
             "algorithm that is fastest when it is timed%s%s",
             wide ? "" : "; attention's backward pass adds as it comes where it is cuDNN's",
             wide || config->parallel.tp > 1
                 ? "; NCCL, where ranks have it, adds fp32 gradients in an order of its own"
                 : "");
}

/* Setting run.deterministic=false where it has no effect is an error, except in configurations of
 * runs with zero.accumulate=local: older versions asked for it there. */
static enum status check_bits(struct env *env, const struct run_config *config)
{
    bool local = config->ranks.accumulate == RUN_ACCUMULATE_LOCAL;
    if (is_fast(config))
        tell_fast(env, config);
    else if (!local && !config->machine.deterministic)
        return FAIL(env, CONFIG,
                    "run.deterministic: false changes nothing here: on a CPU equal bits cost "
                    "nothing; leave the key out");
    if (config->precision == RUN_PRECISION_FP32 && config->precision_sums != RUN_PRECISION_FP32)
        return FAIL(env, CONFIG,
                    "precision.accumulate: bf16 needs precision.mode bf16 or fp16: fp32 gradients "
                    "are summed in fp32");
    return STATUS_OK;
}

/* Memory is allocated for train.global_batch, even if no step has that many sequences. */
static void warn_of_ramp(struct env *env, const struct run_config *config)
{
    const struct batch_ramp *ramp = &config->ramp;
    int64_t steps = config->train.steps;
    char end[32];
    if (batch_ramp_at(ramp, batch_ramp_after(ramp, 0, steps - 1)) == ramp->batch)
        return;
    log_warn(env,
             "train.batch_ramp: the %lld steps of the run end after %s tokens, before a step has "
             "train.global_batch=%lld sequences; raise train.steps, or lower train.global_batch, "
             "which decides how much memory is used",
             (long long)steps, text_human_count(end, (double)batch_ramp_after(ramp, 0, steps)),
             (long long)ramp->batch);
}

enum status run_offload_check(struct env *env, const struct offload_config *o, int device,
                              bool planning)
{
    const char *folder = run_offload_folder(o->folder);
    const int kinds[] = {o->optimizer, o->grads, o->params, o->activations};
    bool host = false, disk = false;
    for (int i = 0; i < 4; i++) {
        host = host || kinds[i] == FAR_HOST;
        disk = disk || kinds[i] == FAR_DISK;
    }
    if (disk && !planning && !dir_exists(folder))
        return FAIL(env, CONFIG, "offload.folder: '%s' is not a folder; create it, or name another",
                    folder);
    if (disk && !planning && dir_is_memory(folder))
        log_warn(env,
                 "offload.folder: files in '%s' are in memory (tmpfs), which saves none; name a "
                 "folder on a disk",
                 folder);
    if (host && device == RUN_DEVICE_CPU)
        log_warn(env, "offload: a CPU's state and activations are in host memory already, so host "
                      "moves nothing; for state, disk does");
    return STATUS_OK;
}

/* Checks of single keys of a training run. */
static enum status check_training(struct env *env, const struct run_config *config)
{
    TRY(check_time(env, "train.max_time", config->train.max_time));
    TRY(check_time(env, "checkpoint.wait_for_space", config->checkpoint.wait_for_space));
    warn_of_ramp(env, config);
    if (config->train.sample_every > 0 && config->tokenizer == NULL && !config->planning)
        return FAIL(
            env, CONFIG,
            "train.sample_every: text samples need data.tokenizer, the one that made the token "
            "files");
    if (config->train.noise_scale && run_micro_batches(config) < 2)
        log_warn(env,
                 "train.noise_scale: a step with one micro-batch cannot tell its noise; set "
                 "train.micro_batch to at most half of train.global_batch (%lld)",
                 (long long)config->train.global_batch);
    return check_bits(env, config);
}

/* *path = the newest checkpoint of a run, also in the folder `second` (NULL = none); NULL = it has
 * none. Free it with mem_free. */
static enum status newest_checkpoint(struct env *env, const char *run, const char *second,
                                     char **path)
{
    char *folder;
    int64_t step;
    bool apart = false;
    *path = NULL;
    TRY(path_join(env, run, "checkpoints", &folder));
    enum status st = checkpoint_keep_newest_of(env, folder, second, INT64_MAX, &step, &apart);
    if (st == STATUS_OK && step >= 0)
        st = checkpoint_keep_path(env, apart ? second : folder, "", step, "", path);
    mem_free(env, folder);
    return st;
}

/* The folder of a run means its newest checkpoint now, so that config.yaml names what the run
 * started from. That checkpoint may be missing: a run that resumes does not need it. */
static enum status resolve_branch(struct env *env, struct options *options, const char **branch)
{
    char *path;
    if (!**branch)
        return STATUS_OK;
    TRY(newest_checkpoint(env, *branch, NULL, &path));
    enum status st = path ? options_keep(options, path, branch) : STATUS_OK;
    mem_free(env, path);
    return st == STATUS_OK ? path_make_absolute(env, options, branch) : st;
}

/* --- everything ----------------------------------------------------------------------------- */

/* *second = where the run looks for checkpoints, too: in checkpoint.fallback; NULL = nowhere */
static enum status find_second(struct env *env, struct options *options,
                               const struct run_config *config, const char **second)
{
    const char *fallback = config->checkpoint.fallback;
    uint64_t id = *fallback ? fallback_id(env, config->resumes) : 0;
    char *folder;
    *second = NULL;
    if (id == 0)
        return STATUS_OK;
    TRY(fallback_folder(env, fallback, config->resumes, id, &folder));
    enum status st = options_keep(options, folder, second);
    mem_free(env, folder);
    return st;
}

/* *from = where the model is read: model.path or, if that is gone, the run that is resumed, with
 * its checkpoints in *second; "" = no model is named. */
static enum status find_model(struct env *env, struct options *options,
                              const struct run_config *config, const char **from,
                              const char **second)
{
    char *saved = NULL;
    *from = config->model.path;
    *second = NULL;
    if (**from == '\0')
        return STATUS_OK;
    if (config->resumes && !file_exists(*from)) {
        TRY(find_second(env, options, config, second));
        TRY(newest_checkpoint(env, config->resumes, *second, &saved));
    }
    if (!saved) /* reading commands take the path as an argument without a key */
        return named_model(env, config->reading ? "" : "model.path", *from);
    mem_free(env, saved);
    log_warn(env,
             "model.path: there is no '%s' any more; the model comes from the checkpoints of '%s'",
             *from, config->resumes);
    *from = config->resumes;
    return STATUS_OK;
}

static enum status resolve(struct env *env, struct options *options,
                           tokenizer_progress_fn *progress, void *user, struct run_config *config)
{
    if (config->reading && *config->model.path == '\0')
        return FAIL(env, CONFIG, "model.path: which model? Give a model directory or a run folder");
    const char *model, *second;
    TRY(find_model(env, options, config, &model, &second));
    if (!data_is_given(&config->data) && config->reading && *config->data.val == '\0') {
        const struct model_want small = {.depth = MODEL_DEPTH_SMALL};
        TRY(model_source_open(env, config->model.path, &small, &config->source)); /* report first */
        return FAIL(env, CONFIG, "data.val: no held-out data; give a file or a quoted glob");
    }
    if (!data_is_given(&config->data) && !config->planning && !config->reading)
        return FAIL(env, CONFIG, "data.path: no data; give a file or a quoted glob");

    TRY(resolve_machine(env, config));
    if (!config->reading && !config->planning) /* also one rank, which creates no communicator */
        TRY(comm_check_device(env, comm_backend_words[config->ranks.backend],
                              run_device_words[config->machine.device]));
    if (config->reading)
        TRY(data_paths_held_out(env, &config->data));
    if (!config->planning)
        TRY(data_paths_check(env, &config->data));
    const struct model_want want = {.depth = config->planning ? MODEL_DEPTH_SMALL : MODEL_DEPTH_ALL,
                                    .second = second};
    if (*model)
        TRY(model_source_open(env, model, &want, &config->source));
    if (!config->planning)
        TRY(resolve_tokenizer(env, progress, user, config));
    else
        TRY(resolve_planned_vocab(env, config));
    TRY(resolve_model(env, options, config));
    TRY(resolve_batches(env, options, config));
    TRY(run_offload_check(env, &config->offload, config->machine.device, config->planning));
    if (config->reading) {
        if (!options_is_set(options, "train.eval_batches"))
            config->train.eval_batches = 0;
        return STATUS_OK;
    }
    TRY(resolve_schedule(env, &config->train));
    TRY(check_training(env, config));
    TRY(optimizer_resolve(env, options, config));
    if (config->planning)
        return STATUS_OK;
    TRY(resolve_branch(env, options, &config->train.branch));
    TRY(path_make_absolute(env, options, &config->model.path));
    return data_paths_make_absolute(env, options, &config->data);
}

enum status run_config_resolve(struct env *env, struct options *options,
                               tokenizer_progress_fn *progress, void *user,
                               struct run_config *config)
{
    enum status st = resolve(env, options, progress, user, config);
    if (st != STATUS_OK)
        run_config_release(config);
    return st;
}

/* Which kernel multiplies on the CPU */
static void describe_products(enum dtype type, struct text *text)
{
    struct ops_info info;
    ops_cpu_info(&info);
    if (type == DTYPE_BF16 && info.bf16_products[0])
        text_printf(text, ", products in bf16 by %s", info.bf16_products);
    else
        text_printf(text, ", products in fp32 by %s", info.products);
}

void run_config_describe(const struct run_config *config, struct text *text)
{
    const struct model_config *model = &config->model;
    const struct train_config *train = &config->train;
    struct compute_config compute = run_compute(config);
    text_printf(text, "model    %s: %lld layer%s, width %lld, %lld head%s",
                model_arch_word(model->arch), (long long)model->layers,
                model->layers == 1 ? "" : "s", (long long)model->width, (long long)model->heads,
                model->heads == 1 ? "" : "s");
    if (model->kv_heads != model->heads)
        text_printf(text, " (%lld for keys and values)", (long long)model->kv_heads);
    text_printf(text, ", context %lld, vocabulary %lld\n", (long long)model->context,
                (long long)model->vocab);
    if (config->tokenizer) {
        text_add(text, "tokens   ");
        tokenizer_describe_special(config->tokenizer, text);
        text_add(text, "\n");
    }
    if (!config->reading) {
        text_printf(text,
                    "batch    %lld sequence%s of %lld token%s, in %lld micro-batch%s of %lld\n",
                    (long long)train->global_batch, train->global_batch == 1 ? "" : "s",
                    (long long)train->context, train->context == 1 ? "" : "s",
                    (long long)run_micro_batches(config),
                    run_micro_batches(config) == 1 ? "" : "es", (long long)train->micro_batch);
        if (config->ramp.count > 0) {
            text_add(text, "ramp     ");
            batch_ramp_describe(&config->ramp, text);
            text_add(text, "\n");
        }
        text_printf(text, "schedule %s: %lld steps, %lld of warm-up, rate %g to %g\n",
                    schedule_words[train->schedule], (long long)train->steps,
                    (long long)train->warmup, train->lr,
                    train->schedule == SCHEDULE_CONSTANT ? train->lr : train->min_lr);
        text_add(text, "update   ");
        optimizer_describe(config, text);
        text_add(text, "\n");
    }
    text_printf(text, "machine  %s", compute.backend);
    if (*config->device.name)
        text_printf(text, " (%s)", config->device.name);
    if (compute.type != DTYPE_F32)
        text_printf(text, ", computing in %s", dtype_name(compute.type));
    if (config->machine.device == RUN_DEVICE_CPU)
        describe_products(compute.products, text);
    text_printf(text, ", %lld thread%s\n", (long long)config->machine.threads,
                config->machine.threads == 1 ? "" : "s");
}

int64_t run_micro_batches(const struct run_config *config)
{
    return config->engine.micro_batches;
}

struct schedule run_schedule(const struct run_config *config)
{
    const struct train_config *train = &config->train;
    return (struct schedule){.kind = train->schedule,
                             .steps = train->steps,
                             .warmup = train->warmup,
                             .decay = train->decay,
                             .lr = train->lr,
                             .min_lr = train->min_lr};
}

static enum dtype type_of(int precision)
{
    switch (precision) {
    case RUN_PRECISION_BF16: return DTYPE_BF16;
    case RUN_PRECISION_FP16: return DTYPE_F16;
    default: return DTYPE_F32;
    }
}

const char *run_offload_folder(const char *chosen)
{
    const char *temporary = getenv("TMPDIR");
    if (chosen && *chosen)
        return chosen;
    return temporary && *temporary ? temporary : "/var/tmp";
}

struct zero_offload run_offload(const struct offload_config *config)
{
    return (struct zero_offload){.optimizer = (enum far_kind)config->optimizer,
                                 .grads = (enum far_kind)config->grads,
                                 .params = (enum far_kind)config->params,
                                 .share = config->share,
                                 .window = config->window,
                                 .folder = run_offload_folder(config->folder),
                                 .on_host = config->update == RUN_UPDATE_HOST};
}

enum dtype run_type(const struct run_config *config)
{
    return type_of(config->precision);
}

enum dtype run_sum_type(const struct run_config *config)
{
    return type_of(config->precision_sums);
}

struct compute_config run_compute(const struct run_config *config)
{
    struct compute_config compute = run_device_compute(config->machine.device, run_type(config));
    if (run_type(config) == DTYPE_BF16)
        compute.products = DTYPE_BF16;
    compute.fast = is_fast(config);
    compute.memory_limit = (size_t)config->machine.device_memory;
    return compute;
}

double run_peak(const struct run_config *config, int ranks)
{
    if (config->machine.peak_tflops > 0)
        return config->machine.peak_tflops * 1e12;
    return ranks * gpu_peak_flops(config->device.name, run_compute(config).type);
}
