#include "train/run_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "train/generate.h"
#include "train/weights/model_file.h"
#include "train/session.h"
#include "train/trainer.h"

/* The back end of ops whose buffers are counted, and which prices calls. */
static const char *planned_ops(const struct device_info *device,
                               const struct compute_config *compute)
{
    if (device->loaded)
        return compute->backend;
    return compute->type == DTYPE_F32 ? "cpu" : "ref";
}

struct plan_request run_plan_request(const struct run_config *config, int ranks)
{
    const struct train_config *train = &config->train;
    struct compute_config compute = run_compute(config);
    bool on_gpu = config->machine.device == RUN_DEVICE_CUDA;
    /* Tokens of a sample: a prompt has at most one per byte, and one before it. */
    int64_t room = (int64_t)strlen(train->sample_prompt) + 1 + train->sample_tokens;
    room = train->sample_every == 0       ? 0
           : room < config->model.context ? room
                                          : config->model.context;
    return (struct plan_request){
        .model = config->model,
        .engine = config->engine,
        .zero = trainer_store_config(config),
        .parallel = config->parallel,
        .saves_apart = checkpoint_in_background(&config->checkpoint, train->steps),
        .loop_votes = 1, /* whether to stop, before each step */
        .ops = planned_ops(&config->device, &compute),
        .compute = compute.type,
        .products = compute.products,
        /* NCCL's own memory is not known; where it may be used, the bounce buffer stands for it. */
        .staged = on_gpu && strcmp(comm_backend_words[config->ranks.backend], "nccl") != 0,
        .gpu = on_gpu,
        .capability = config->device.capability,
        .ranks = ranks,
        .threads = (int)config->machine.threads,
        .decode_tokens = room,
        .decode_chunk = room < GENERATE_CHUNK ? room : GENERATE_CHUNK,
    };
}

/* Ranks of this machine that share a GPU. */
static int ranks_per_gpu(const struct device_info *device, int local)
{
    return (local + device->count - 1) / device->count;
}

/* Free for each of `local` ranks; 0 = not known. */
static size_t free_memory(const struct run_config *config, size_t host_bytes, int local)
{
    if (config->machine.device != RUN_DEVICE_CUDA)
        return host_bytes / (size_t)local;
    if (config->device.count == 0)
        return 0;
    return config->device.free_bytes / (size_t)ranks_per_gpu(&config->device, local);
}

/* run.device_memory limits the account, in which the runtime of a GPU is not. */
size_t run_memory(const struct run_config *config, size_t host_bytes, int local)
{
    size_t available = free_memory(config, host_bytes, local);
    size_t limit = (size_t)config->machine.device_memory;
    if (limit > 0 && config->machine.device == RUN_DEVICE_CUDA)
        limit += (size_t)formula_gpu_runtime();
    return limit > 0 && (available == 0 || limit < available) ? limit : available;
}

enum status run_gpu_that_fits(struct env *env, const struct run_config *config, int ranks,
                              int local, char *name, size_t bytes)
{
    struct run_config other = *config;
    struct plan_rank rank;
    name[0] = '\0';
    if (config->machine.device == RUN_DEVICE_CUDA)
        return STATUS_OK;
    other.machine.device = RUN_DEVICE_CUDA;
    TRY(run_device_find(env, true, &other.machine.device, &other.device));
    if (other.device.count == 0)
        return STATUS_OK;
    const struct plan_request request = run_plan_request(&other, ranks);
    TRY(plan_rank_memory(env, &request, 0, NULL, NULL, &rank));
    if (plan_needed_bytes(&rank) <= run_memory(&other, 0, local))
        snprintf(name, bytes, "%s", other.device.name);
    return STATUS_OK;
}

static enum status refuse(struct env *env, const char *what, double needed, size_t available,
                          const char *advice)
{
    char a[32], b[32];
    if (available == 0 || needed <= (double)available)
        return STATUS_OK;
    return FAIL(env, FIT, "%s needs %s and %s is free; try %s", what, text_human_bytes(a, needed),
                text_human_bytes(b, (double)available), advice);
}

/* What helps where a model is only read. */
static const char *reading_advice(const struct zero_config *store)
{
    if (store->offload.params == FAR_NONE)
        return "read the parameters layer by layer: offload.params=disk (on a GPU also host)";
    return store->prefetch > 0 ? "read fewer layers ahead: zero.prefetch=0"
                               : "share the model with more ranks (-n): parallel.tp or parallel.pp";
}

static enum status check_limit(struct env *env, size_t limit, const struct plan_rank *rank,
                               const char *advice)
{
    char a[32], b[32];
    if (limit == 0 || rank->total_bytes <= limit)
        return STATUS_OK;
    return FAIL(env, FIT, "a rank needs %s and run.device_memory allows %s; raise it, or %s",
                text_human_bytes(a, (double)rank->total_bytes), text_human_bytes(b, (double)limit),
                advice);
}

/* The same for host memory of ranks with a GPU: what is offloaded there, and bounce buffers. */
static enum status compare_host(struct env *env, const struct plan_rank *rank,
                                const struct run_ranks *ranks, size_t available, const char *what)
{
    char a[32], b[32];
    double needed = (double)rank->host_bytes * ranks->local;
    if (available == 0 || needed <= (double)available)
        return STATUS_OK;
    return FAIL(env, FIT,
                "%s needs %s of host memory and %s is free; keep less there: offload.optimizer, "
                "offload.grads or offload.params on disk or none, a smaller offload.share or "
                "offload.activations_share, or fewer ranks on this machine",
                what, text_human_bytes(a, needed), text_human_bytes(b, (double)available));
}

/* Refuse the request if `ranks` of this machine need more than it has. */
static enum status compare(struct env *env, const struct plan_rank *rank,
                           const struct device_info *device, const struct run_ranks *ranks,
                           size_t available, const char *what, const char *advice)
{
    int together = ranks->local; /* ranks that share a memory */
    if (device->total_bytes > 0) {
        TRY(compare_host(env, rank, ranks, available, what));
        together = ranks_per_gpu(device, ranks->local);
        available = together > 1 ? device->total_bytes : device->free_bytes;
    }
    return refuse(env, what, (double)plan_needed_bytes(rank) * together, available, advice);
}

enum status run_fit_check(struct env *env, const struct run_config *config,
                          const struct run_ranks *ranks, size_t available)
{
    struct plan_request request = run_plan_request(config, ranks->size);
    struct plan_rank rank;
    if (config->reading) {
        const struct layout_config layout = {config->parallel, config->ranks, config->offload};
        request.zero = session_reading_store(&layout);
        request.decode_tokens = request.decode_chunk = 0;
    }
    TRY(plan_rank_memory(env, &request, ranks->rank, NULL, NULL, &rank));
    TRY(check_limit(env, (size_t)config->machine.device_memory, &rank,
                    config->reading ? reading_advice(&request.zero)
                                    : "see what fits with sifr plan"));
    if (config->reading) {
        char advice[256];
        snprintf(advice, sizeof advice,
                 "a smaller --batch or --context, or more ranks with zero.stage=3, or %s",
                 reading_advice(&request.zero));
        return compare(env, &rank, &config->device, ranks, available, "the evaluation", advice);
    }
    return compare(env, &rank, &config->device, ranks, available, "the run",
                   "a smaller train.micro_batch, engine.recompute=full, a smaller model or ranks "
                   "on more machines with zero.stage=3 (sifr plan shows what fits)");
}

enum status run_fit_text(struct env *env, const struct run_text *text,
                         const struct run_ranks *ranks, size_t available)
{
    struct plan_request request = {
        .zero = session_reading_store(text->layout),
        .parallel = text->layout->parallel,
        .ops = planned_ops(&text->device, &text->compute),
        .compute = text->compute.type,
        .products = text->compute.products,
        .staged = text->device.total_bytes > 0 &&
                  strcmp(comm_backend_words[text->layout->ranks.backend], "nccl") != 0,
        .gpu = text->device.total_bytes > 0,
        .capability = text->device.capability,
        .ranks = ranks->size,
        .threads = env->threads,
        .decode_rows = text->rows,
        .decode_only = true};
    struct plan_rank rank;
    TRY(model_file_config(env, text->folder, &request.model));
    const struct unit_shape shape = generate_shape(&request.model);
    request.engine.micro_batch = shape.batch;
    request.engine.tokens = request.decode_chunk = shape.tokens;
    request.decode_tokens = request.model.context;
    TRY(plan_rank_memory(env, &request, ranks->rank, NULL, NULL, &rank));
    TRY(check_limit(env, text->compute.memory_limit, &rank, reading_advice(&request.zero)));
    char advice[256];
    snprintf(advice, sizeof advice,
             "more ranks with zero.stage=3, parallel.tp or parallel.pp on more machines, a smaller "
             "model or a machine with more memory, or %s",
             reading_advice(&request.zero));
    return compare(env, &rank, &text->device, ranks, available, "the model", advice);
}
