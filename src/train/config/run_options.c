/* run_options -- option tables of train.*, checkpoint.*, precision.*, zero.*, comm.* and run.*:
 * keys, defaults, ranges, help. */
#include <stddef.h>
#include "train/config/config.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define TRAIN(name, kind) \
    .key = "train." #name, .type = OPTION_##kind, .offset = offsetof(struct train_config, name)
#define RUN(name, kind) \
    .key = "run." #name, .type = OPTION_##kind, .offset = offsetof(struct machine_config, name)
#define RANGE(low, high) .ranged = true, .min = (low), .max = (high)

static const struct option train_list[] = {
    {TRAIN(steps, INT), .fallback = "1000", RANGE(1, 1e12), .help = "number of optimizer steps"},
    {TRAIN(micro_batch, INT), .fallback = "8", RANGE(1, 1e6), .help = "sequences per micro-batch"},
    {TRAIN(global_batch, INT), .fallback = "0", RANGE(0, 1e9),
     .help = "sequences per step, a multiple of train.micro_batch; 0 = one micro-batch"},
    {TRAIN(batch_ramp, STRING), .fallback = "", .value_name = "SIZE@TOKENS,...",
     .help = "smaller batches at the start: SIZE sequences per step until TOKENS tokens have been "
             "trained on, then the next; train.global_batch after the last"},
    {TRAIN(context, INT), .fallback = "0", RANGE(0, 1e7),
     .help = "tokens per sequence; 0 = model.context"},
    {TRAIN(lr, REAL), .fallback = "6e-4", RANGE(0, 1e3), .help = "peak learning rate"},
    {TRAIN(min_lr, REAL), .fallback = "-1", RANGE(-1, 1e3),
     .help = "learning rate of the last step, unless the schedule is constant; -1 = train.lr / "
             "10"},
    {TRAIN(warmup, INT), .fallback = "-1", RANGE(-1, 1e12),
     .help = "warm-up steps; -1 = train.steps / 20, at most 1000"},
    {TRAIN(schedule, CHOICE), .fallback = "cosine", .choices = schedule_words,
     .help = "learning rate after the warm-up; wsd = constant until the last train.decay steps"},
    {TRAIN(decay, INT), .fallback = "-1", RANGE(-1, 1e12),
     .help = "decay steps of the wsd schedule; -1 = train.steps / 5"},
    {TRAIN(weight_decay, REAL), .fallback = "0.1", RANGE(0, 1e3),
     .help =
         "weight decay of matrices and embeddings; decoupled, but with sgd part of the gradient"},
    {TRAIN(beta1, REAL), .fallback = "0.9", RANGE(0, 0.9999999), .help = "AdamW's beta1"},
    {TRAIN(beta2, REAL), .fallback = "0.95", RANGE(0, 0.9999999), .help = "AdamW's beta2"},
    {TRAIN(eps, REAL), .fallback = "1e-8", RANGE(1e-30, 1), .help = "AdamW's epsilon"},
    {TRAIN(clip, REAL), .fallback = "1", RANGE(0, 1e9),
     .help = "maximum gradient norm; 0 = no clipping, the default of model.arch sars"},
    {TRAIN(freeze, STRING), .fallback = "", .value_name = "GLOB,...",
     .help = "parameters that are not trained, by name: no gradients, no optimizer state; 'sifr "
             "inspect MODEL' lists the names"},
    {TRAIN(noise_scale, BOOL), .fallback = "false",
     .help = "measure the gradient noise scale, which tells how large a batch is worth having; "
             "needs at least two micro-batches per step"},
    {TRAIN(seed, INT), .fallback = "1", RANGE(0, 9e18),
     .help = "seed of initial values, sample order, text samples and stochastic rounding"},
    {TRAIN(max_skips, INT), .fallback = "5", RANGE(1, 1e9),
     .help = "skipped steps in a row after which the run ends"},
    {TRAIN(max_time, STRING), .fallback = "", .value_name = "TIME",
     .help = "time limit after which the run saves and stops: seconds, or 2h30m; empty or 0 = "
             "none; the time limit of a Slurm job always applies too"},
    {TRAIN(stop_at, INT), .fallback = "0", RANGE(0, 1e12),
     .help = "step after which the run saves and stops; raise or omit it to resume; 0 = none"},
    {TRAIN(branch, STRING), .fallback = "", .value_name = "DIR",
     .help =
         "checkpoint of another run, or that run's folder for its newest: a new run starts from "
         "it, with its optimizer state, step and data position"},
    {TRAIN(log_every, INT), .fallback = "10", RANGE(1, 1e12),
     .help = "steps between printed lines; metrics.jsonl has every step"},
    {TRAIN(eval_every, INT), .fallback = "250", RANGE(0, 1e12),
     .help = "steps between evaluations on held-out data; 0 = only at the end"},
    {TRAIN(eval_batches, INT), .fallback = "50", RANGE(0, 1e12),
     .help = "micro-batches per evaluation; 0 = all held-out data"},
    {TRAIN(sample_every, INT), .fallback = "0", RANGE(0, 1e12),
     .help = "steps between text samples; 0 = none"},
    {TRAIN(sample_prompt, STRING), .fallback = "", .value_name = "TEXT",
     .help = "prompt of text samples"},
    {TRAIN(sample_tokens, INT), .fallback = "64", RANGE(1, 1e7), .help = "tokens per text sample"},
    {TRAIN(sample_temperature, REAL), .fallback = "0.8", RANGE(0, 100),
     .help = "temperature of text samples; 0 = always the most likely token"},
    {TRAIN(sample_top_k, INT), .fallback = "0", RANGE(0, 1e9),
     .help = "number of most likely tokens to choose from in text samples; 0 = all"},
    {TRAIN(sample_top_p, REAL), .fallback = "0.95", RANGE(1e-6, 1),
     .help = "total probability of the most likely tokens to choose from in text samples; 1 = "
             "all"},
};
const struct option_table train_options = {
    .title = "training", .options = train_list, .count = COUNT(train_list)};

#define CHECKPOINT(name, kind)                         \
    .key = "checkpoint." #name, .type = OPTION_##kind, \
    .offset = offsetof(struct checkpoint_config, name)
static const struct option checkpoint_list[] = {
    {CHECKPOINT(every, INT), .fallback = "1000", RANGE(0, 1e12),
     .help = "steps between checkpoints; 0 = only the one at the end"},
    {CHECKPOINT(keep, INT), .fallback = "2", RANGE(1, 1e9),
     .help = "number of newest checkpoints to keep"},
    {CHECKPOINT(major, INT), .fallback = "0", RANGE(0, 1e12),
     .help = "steps between checkpoints that are kept forever; 0 = none"},
    {CHECKPOINT(last, BOOL), .fallback = "true",
     .help = "save when the last step is done; false = keep only the metrics of a finished run (a "
             "run that is stopped is always saved)"},
    {CHECKPOINT(final, BOOL), .fallback = "true",
     .help = "save at the end, also of a run that is stopped; false = only every checkpoint.every "
             "steps: for runs whose state is larger than the disk"},
    {CHECKPOINT(async, BOOL), .fallback = "true",
     .help = "save in the background; needs memory for a copy of the state"},
    {CHECKPOINT(direct, BOOL), .fallback = "true",
     .help = "bypass the page cache (O_DIRECT) where the file system allows it"},
    {.key = "checkpoint.file_size",
     .type = OPTION_INT,
     .offset = offsetof(struct checkpoint_config, file_bytes),
     .fallback = "5G",
     RANGE(1, 1e18),
     .help = "maximum bytes of a tensor file; larger ones are split"},
    {CHECKPOINT(fallback, STRING), .fallback = "", .value_name = "DIR",
     .help = "folder for the last checkpoint if the run folder cannot hold it; the same command "
             "resumes from there"},
    {CHECKPOINT(wait_for_space, STRING), .fallback = "10m", .value_name = "TIME",
     .help = "time to wait for disk space for the last checkpoint; 0 = none"},
    {CHECKPOINT(make_room, BOOL), .fallback = "false",
     .help = "delete older checkpoints of the run if the disk is too full for the last one; "
             "never the newest or those of checkpoint.major"},
};
const struct option_table checkpoint_options = {
    .title = "checkpoints", .options = checkpoint_list, .count = COUNT(checkpoint_list)};

static const char *const precision_words[] = {"fp32", "bf16", "fp16", NULL};
static const char *const sum_words[] = {"fp32", "bf16", NULL};
static const struct option precision_list[] = {
    {.key = "precision.mode",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct run_config, precision),
     .fallback = "fp32",
     .choices = precision_words,
     .help = "type of parameters and gradients; bf16 and fp16 keep fp32 masters, fp16 scales "
             "the loss"},
    {.key = "precision.accumulate",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct run_config, precision_sums),
     .fallback = "fp32",
     .choices = sum_words,
     .help = "type of summed gradients in bf16 and fp16 runs; if this is bf16, results depend on "
             "the number of workers"},
};
const struct option_table precision_options = {
    .title = "precision", .options = precision_list, .count = COUNT(precision_list)};

static const char *const accumulate_words[] = {"each", "local", NULL};
static const char *const stage_words[] = {"0", "1", "2", "3", NULL};
const char *const comm_backend_words[] = {"auto", "self", "threads", "mpi", "nccl", NULL};
#define RANKS(name) .offset = offsetof(struct ranks_config, name)
static const struct option ranks_list[] = {
    {.key = "zero.stage",
     .type = OPTION_CHOICE,
     RANKS(stage),
     .fallback = "0",
     .choices = stage_words,
     .help = "ZeRO stage: what is sharded; 0 nothing, 1 optimizer state, 2 also "
             "gradients, 3 also parameters"},
    {.key = "zero.prefetch",
     .type = OPTION_INT,
     RANKS(prefetch),
     .fallback = "1",
     RANGE(0, 64),
     .help = "ZeRO stage 3: units to gather ahead"},
    {.key = "zero.bucket",
     .type = OPTION_INT,
     RANKS(bucket),
     .fallback = "0",
     RANGE(0, 9e18),
     .value_name = "BYTES",
     .help = "bytes per message: smaller layers are exchanged together, larger ones in several "
             "messages; 0 = a message per layer"},
    {.key = "zero.unit_layers",
     .type = OPTION_INT,
     RANKS(unit_layers),
     .fallback = "1",
     RANGE(1, 1e6),
     .help = "layers that are gathered together, and whose gradients are sent together"},
    {.key = "zero.servers",
     .type = OPTION_INT,
     RANKS(servers),
     .fallback = "0",
     RANGE(0, 1e6),
     .help = "number of parameter servers: the last ranks own all shards and compute nothing"},
    {.key = "zero.shard_group",
     .type = OPTION_INT,
     RANKS(shard_group),
     .fallback = "0",
     RANGE(0, 1e6),
     .help = "number of adjacent ranks that share one copy of the state; 0 = all ranks"},
    {.key = "zero.accumulate",
     .type = OPTION_CHOICE,
     RANKS(accumulate),
     .fallback = "each",
     .choices = accumulate_words,
     .help = "when gradients are sent: each = after every micro-batch; local = once per step, "
             "after each worker has summed its own in the type of precision.accumulate: less "
             "traffic, but every worker holds all gradients, and results depend on the number of "
             "workers"},
    {.key = "comm.backend",
     .type = OPTION_CHOICE,
     RANKS(backend),
     .fallback = "auto",
     .choices = comm_backend_words,
     .help = "how ranks communicate; threads = ranks in one process; nccl = between GPUs, one "
             "per rank; with auto and nccl, ranks are processes if there is an mpirun, else "
             "threads"},
    {.key = "comm.timeout",
     .type = OPTION_REAL,
     RANKS(timeout),
     .fallback = "300",
     RANGE(0, 1e9),
     .help = "seconds to wait for another rank before the run fails and names it; 0 = forever"},
    {.key = "comm.delay",
     .type = OPTION_REAL,
     RANKS(delay),
     .fallback = "0",
     RANGE(0, 60),
     .help = "for tests: longest random wait before and after every exchange, seconds"},
};
const struct option_table ranks_options = {
    .title = "ranks", .options = ranks_list, .count = COUNT(ranks_list)};

#define LAYOUT(name) .offset = offsetof(struct layout_config, name)
static const struct option layout_list[] = {
    {.key = "parallel.tp",
     .type = OPTION_INT,
     LAYOUT(parallel.tp),
     .fallback = "1",
     RANGE(1, 1024),
     .help = "tensor-parallel degree: adjacent ranks that compute every layer together, each with "
             "a part of its matrices"},
    {.key = "parallel.pp",
     .type = OPTION_INT,
     LAYOUT(parallel.pp),
     .fallback = "1",
     RANGE(1, 4096),
     .help = "pipeline-parallel degree: PP stages, each with consecutive layers"},
    {.key = "zero.stage",
     .type = OPTION_CHOICE,
     LAYOUT(ranks.stage),
     .fallback = "0",
     .choices = stage_words,
     .help = "3 = parameters are sharded over the ranks and gathered layer by layer; 0, 1 and 2 = "
             "every copy of the model is complete"},
    {.key = "zero.prefetch",
     .type = OPTION_INT,
     LAYOUT(ranks.prefetch),
     .fallback = "1",
     RANGE(0, 64),
     .help = "ZeRO stage 3 and offload.params: units to gather ahead"},
    {.key = "zero.shard_group",
     .type = OPTION_INT,
     LAYOUT(ranks.shard_group),
     .fallback = "0",
     RANGE(0, 1e6),
     .help = "ZeRO stage 3: number of adjacent ranks that share one copy of the parameters; 0 = "
             "all ranks"},
    {.key = "offload.params",
     .type = OPTION_CHOICE,
     LAYOUT(offload.params),
     .fallback = "none",
     .choices = far_words,
     .help = "where parameters are kept: none = on the device; host = in pinned host memory; disk "
             "= in a file without a name. They are read layer by layer, zero.prefetch layers "
             "ahead"},
    {.key = "offload.folder",
     .type = OPTION_STRING,
     LAYOUT(offload.folder),
     .fallback = "",
     .value_name = "DIR",
     .help = "where files of offload go; default: $TMPDIR, else /var/tmp"},
    {.key = "comm.backend",
     .type = OPTION_CHOICE,
     LAYOUT(ranks.backend),
     .fallback = "auto",
     .choices = comm_backend_words,
     .help = "how ranks communicate; threads = ranks in one process; nccl = between GPUs, one per "
             "rank; with auto and nccl, ranks are processes if there is an mpirun, else threads"},
    {.key = "comm.timeout",
     .type = OPTION_REAL,
     LAYOUT(ranks.timeout),
     .fallback = "300",
     RANGE(0, 1e9),
     .help = "seconds to wait for another rank before the command fails and names it; 0 = "
             "forever"},
    {.key = "comm.delay",
     .type = OPTION_REAL,
     LAYOUT(ranks.delay),
     .fallback = "0",
     RANGE(0, 60),
     .help = "for tests: longest random wait before and after every exchange, seconds"},
};
const struct option_table layout_options = {
    .title = "ranks", .options = layout_list, .count = COUNT(layout_list)};

static const char *const update_words[] = {"auto", "device", "host", NULL};
static const char *const activations_words[] = {"none", "host", NULL}; /* enum far_kind */
#define OFFLOAD(name) .offset = offsetof(struct offload_config, name)
static const struct option offload_list[] = {
    {.key = "offload.optimizer",
     .type = OPTION_CHOICE,
     OFFLOAD(optimizer),
     .fallback = "none",
     .choices = far_words,
     .help = "where masters and moments are kept: none = on the device; host = in pinned host "
             "memory; disk = in a file without a name"},
    {.key = "offload.grads",
     .type = OPTION_CHOICE,
     OFFLOAD(grads),
     .fallback = "none",
     .choices = far_words,
     .help =
         "where summed gradients that only one rank holds are kept; the others stay on the device"},
    {.key = "offload.params",
     .type = OPTION_CHOICE,
     OFFLOAD(params),
     .fallback = "none",
     .choices = far_words,
     .help = "where parameters are kept; a pass reads them layer by layer, zero.prefetch layers "
             "ahead. They are sharded as in ZeRO stage 3"},
    {.key = "offload.activations",
     .type = OPTION_CHOICE,
     OFFLOAD(activations),
     .fallback = "none",
     .choices = activations_words,
     .help = "where activations are kept from forward to backward: none = on the device; host = in "
             "pinned host memory, except those of the last three units; not with parallel.pp "
             "above 1"},
    {.key = "offload.activations_share",
     .type = OPTION_REAL,
     OFFLOAD(activations_share),
     .fallback = "1",
     RANGE(0.01, 1),
     .help =
         "share of the layers whose activations leave the device: as much as the link can hide; "
         "with plan --gpus, chosen where it is not given"},
    {.key = "offload.share",
     .type = OPTION_REAL,
     OFFLOAD(share),
     .fallback = "1",
     RANGE(0, 1),
     .help = "share of masters and moments that leaves the device; what is used first stays"},
    {.key = "offload.window",
     .type = OPTION_INT,
     OFFLOAD(window),
     .fallback = "512M",
     RANGE(0, 9e18),
     .value_name = "BYTES",
     .help = "device memory through which offloaded state passes; what it holds is fetched before "
             "the update begins. Where the CPU updates: pinned host memory for gradients and "
             "params"},
    {.key = "offload.update",
     .type = OPTION_CHOICE,
     OFFLOAD(update),
     .fallback = "auto",
     .choices = update_words,
     .help = "who updates state in host memory: device = it passes through the device; host = the "
             "CPU, in 16-bit runs and with optimizers that work element by element; auto = the "
             "device (plan says where the CPU is faster)"},
    {.key = "offload.folder",
     .type = OPTION_STRING,
     OFFLOAD(folder),
     .fallback = "",
     .value_name = "DIR",
     .help = "where files of offload go; default: $TMPDIR, else /var/tmp"},
};
const struct option_table offload_options = {
    .title = "offload", .options = offload_list, .count = COUNT(offload_list)};

const char *const run_device_words[] = {"auto", "cpu", "cuda", NULL};
const char *const run_bind_words[] = {"auto", "none", NULL};
enum { PLACE_KEYS = 5 }; /* the first options of machine_list */
static const struct option machine_list[] = {
    {RUN(device, CHOICE), .fallback = "auto", .choices = run_device_words,
     .help = "device; auto = cuda if there is a GPU"},
    {RUN(threads, INT), .also = "threads", .fallback = "0", RANGE(0, 4096),
     .help =
         "CPU threads per rank; 0 = OMP_NUM_THREADS, or the cores that the process may use by its "
         "affinity mask and CPU quota, divided among the ranks of a machine"},
    {RUN(bind, CHOICE), .fallback = "auto", .choices = run_bind_words,
     .help =
         "auto = CPU ranks of one machine keep to cores of their own, of one NUMA node where "
         "possible, and ranks with GPUs to the node of their GPU, unless the launcher or OpenMP "
         "has bound them or there are fewer CPUs than threads; none = the system moves them; same "
         "bits"},
    {RUN(device_memory, INT), .fallback = "0", RANGE(0, 9e18), .value_name = "BYTES",
     .help = "limit on the memory of a rank on its device, GPU or CPU, as sifr plan counts it: an "
             "allocation beyond it ends the run; 0 = none"},
    {RUN(kernels, STRING), .fallback = "auto", .value_name = "NAME",
     .help = "set of CPU kernels: amx, avx512-bf16, avx512, avx2 (x86-64), bfmmla, neon (arm64), "
             "openblas, plain; auto = the fastest here; all ranks need the same"},
    {RUN(deterministic, BOOL), .fallback = "true",
     .help = "same bits in every run and for any number of threads and ranks; false = faster on "
             "a GPU (matrix-product algorithms chosen by timing, sums by NCCL)"},
    {RUN(peak_tflops, REAL), .fallback = "0", RANGE(0, 1e9),
     .help = "peak TFLOP/s of this machine, for MFU; 0 = looked up by GPU name; no MFU on a CPU"},
    {RUN(stop_timeout, REAL), .fallback = "600", RANGE(0, 1e6),
     .help = "seconds without progress after a stop signal before the process ends with exit "
             "code 4, but at least three times the longest step; 0 = never"},
};
const struct option_table machine_options = {
    .title = "machine", .options = machine_list, .count = COUNT(machine_list)};
const struct option_table place_options = {
    .title = "machine", .options = machine_list, .count = PLACE_KEYS};
