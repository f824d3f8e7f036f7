/* run_options -- the tables of train.*, checkpoint.*, optimizer.*, precision.* and run.*: keys,
 * defaults, ranges, help. */
#include <stddef.h>
#include "train/config/config.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define TRAIN(name, kind) \
    .key = "train." #name, .type = OPTION_##kind, .offset = offsetof(struct train_config, name)
#define RUN(name, kind) \
    .key = "run." #name, .type = OPTION_##kind, .offset = offsetof(struct machine_config, name)
#define GROUP(name, kind) \
    .key = #name, .type = OPTION_##kind, .offset = offsetof(struct zero_group, name)
#define RANGE(low, high) .ranged = true, .min = (low), .max = (high)

static const struct option train_list[] = {
    {TRAIN(steps, INT), .fallback = "1000", RANGE(1, 1e12), .help = "optimizer steps"},
    {TRAIN(micro_batch, INT), .fallback = "8", RANGE(1, 1e6), .help = "sequences computed at once"},
    {TRAIN(global_batch, INT), .fallback = "0", RANGE(0, 1e9),
     .help = "sequences of a step, a multiple of train.micro_batch; 0 = the same"},
    {TRAIN(context, INT), .fallback = "0", RANGE(0, 1e7),
     .help = "tokens of a sequence; 0 = model.context"},
    {TRAIN(lr, REAL), .fallback = "6e-4", RANGE(0, 1e3), .help = "highest learning rate"},
    {TRAIN(min_lr, REAL), .fallback = "-1", RANGE(-1, 1e3),
     .help = "learning rate of the last step (not for constant); -1 = a tenth of train.lr"},
    {TRAIN(warmup, INT), .fallback = "-1", RANGE(-1, 1e12),
     .help = "steps in which the rate rises; -1 = a twentieth of the steps, at most 1000"},
    {TRAIN(schedule, CHOICE), .fallback = "cosine", .choices = schedule_words,
     .help = "how the rate falls; wsd = stays, then falls in train.decay steps"},
    {TRAIN(decay, INT), .fallback = "-1", RANGE(-1, 1e12),
     .help = "last steps in which wsd falls; -1 = a fifth of the steps"},
    {TRAIN(weight_decay, REAL), .fallback = "0.1", RANGE(0, 1e3),
     .help = "decoupled decay of matrices and embeddings"},
    {TRAIN(beta1, REAL), .fallback = "0.9", RANGE(0, 0.9999999), .help = "AdamW's first moment"},
    {TRAIN(beta2, REAL), .fallback = "0.95", RANGE(0, 0.9999999), .help = "AdamW's second moment"},
    {TRAIN(eps, REAL), .fallback = "1e-8", RANGE(1e-30, 1), .help = "AdamW's epsilon"},
    {TRAIN(clip, REAL), .fallback = "1", RANGE(0, 1e9),
     .help = "largest norm of the gradient; 0 = no clipping"},
    {TRAIN(seed, INT), .fallback = "1", RANGE(0, 9e18),
     .help = "of initial values, sample order, text samples and stochastic rounding"},
    {TRAIN(max_skips, INT), .fallback = "5", RANGE(1, 1e9),
     .help = "skipped steps in a row after which the run ends"},
    {TRAIN(max_time, STRING), .fallback = "", .value_name = "TIME",
     .help = "save and stop after so long: seconds, or 2h30m; empty or 0 = no limit; a Slurm job's "
             "end is known by itself"},
    {TRAIN(stop_at, INT), .fallback = "0", RANGE(0, 1e12),
     .help = "save and stop after this step; a larger one, or none, goes on; 0 = never"},
    {TRAIN(log_every, INT), .fallback = "10", RANGE(1, 1e12),
     .help = "steps between two printed lines (metrics.jsonl has every step)"},
    {TRAIN(eval_every, INT), .fallback = "250", RANGE(0, 1e12),
     .help = "steps between evaluations on held-out data; 0 = only at the end"},
    {TRAIN(eval_batches, INT), .fallback = "50", RANGE(0, 1e12),
     .help = "micro-batches of an evaluation; 0 = all held-out data"},
    {TRAIN(sample_every, INT), .fallback = "0", RANGE(0, 1e12),
     .help = "steps between text samples; 0 = none"},
    {TRAIN(sample_prompt, STRING), .fallback = "", .value_name = "TEXT",
     .help = "what text samples begin with"},
    {TRAIN(sample_tokens, INT), .fallback = "64", RANGE(1, 1e7), .help = "tokens of a text sample"},
    {TRAIN(sample_temperature, REAL), .fallback = "0.8", RANGE(0, 100),
     .help = "of text samples; 0 = always the likeliest token"},
    {TRAIN(sample_top_k, INT), .fallback = "0", RANGE(0, 1e9),
     .help = "choose among so many tokens; 0 = all"},
    {TRAIN(sample_top_p, REAL), .fallback = "0.95", RANGE(1e-6, 1),
     .help = "choose among the likeliest tokens with this share; 1 = all"},
};
const struct option_table train_options = {
    .title = "training", .options = train_list, .count = COUNT(train_list)};

#define CHECKPOINT(name, kind)                         \
    .key = "checkpoint." #name, .type = OPTION_##kind, \
    .offset = offsetof(struct checkpoint_config, name)
static const struct option checkpoint_list[] = {
    {CHECKPOINT(every, INT), .fallback = "1000", RANGE(0, 1e12),
     .help = "steps between two checkpoints; there is one at the end in any case; 0 = only there"},
    {CHECKPOINT(keep, INT), .fallback = "2", RANGE(1, 1e9), .help = "the newest so many stay"},
    {CHECKPOINT(major, INT), .fallback = "0", RANGE(0, 1e12),
     .help = "at multiples of so many steps one is saved too, and stays for ever; 0 = none"},
    {CHECKPOINT(async, BOOL), .fallback = "true",
     .help = "write them while the run goes on; takes memory for a copy of the state"},
    {CHECKPOINT(direct, BOOL), .fallback = "true",
     .help = "write and read them past the system's cache of files, where that can be"},
    {.key = "checkpoint.file_size",
     .type = OPTION_INT,
     .offset = offsetof(struct checkpoint_config, file_bytes),
     .fallback = "5G",
     RANGE(1, 1e18),
     .help = "bytes above which a file of tensors is cut into several"},
    {CHECKPOINT(fallback, STRING), .fallback = "", .value_name = "DIR",
     .help = "where the last checkpoint goes when it cannot be saved in the run's folder; the same "
             "command resumes from there"},
    {CHECKPOINT(wait_for_space, STRING), .fallback = "10m", .value_name = "TIME",
     .help =
         "how long to wait for space when the disk is too full for the last checkpoint; 0 = not"},
    {CHECKPOINT(make_room, BOOL), .fallback = "false",
     .help =
         "remove older checkpoints of the run when the disk is too full for the last one; never "
         "the newest, nor those of checkpoint.major"},
};
const struct option_table checkpoint_options = {
    .title = "checkpoints", .options = checkpoint_list, .count = COUNT(checkpoint_list)};

static const struct option group_fields[] = {
    {GROUP(match, STRING), .value_name = "GLOB", .help = "which tensors, by name"},
    {GROUP(lr_mul, REAL), .fallback = "1", RANGE(0, 1e9), .help = "factor of the learning rate"},
    {GROUP(wd_mul, REAL), .fallback = "1", RANGE(0, 1e9), .help = "factor of the weight decay"},
};
static const char *const rounding_words[] = {"nearest", "stochastic", NULL};
static const struct option optimizer_list[] = {
    {.key = "optimizer.rounding",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct run_config, rounding),
     .fallback = "nearest",
     .choices = rounding_words,
     .help =
         "how 16-bit parameters are made of fp32 masters; stochastic = up or down with a chance "
         "by the distance (train.seed)"},
    {.key = "optimizer.groups",
     .type = OPTION_LIST,
     .offset = offsetof(struct run_config, groups),
     .help = "[{match: GLOB, lr_mul: X, wd_mul: Y}, ...] over tensor names; the last match wins",
     .fields = group_fields,
     .field_count = COUNT(group_fields),
     .element_bytes = sizeof(struct zero_group)},
};
const struct option_table optimizer_options = {
    .title = "optimizer", .options = optimizer_list, .count = COUNT(optimizer_list)};

static const char *const precision_words[] = {"fp32", "bf16", "fp16", NULL};
static const char *const sum_words[] = {"fp32", "bf16", NULL};
static const struct option precision_list[] = {
    {.key = "precision.mode",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct run_config, precision),
     .fallback = "fp32",
     .choices = precision_words,
     .help = "parameters and gradients in 4 or in 2 bytes, these beside fp32 masters; fp16 scales "
             "the loss"},
    {.key = "precision.accumulate",
     .type = OPTION_CHOICE,
     .offset = offsetof(struct run_config, precision_sums),
     .fallback = "fp32",
     .choices = sum_words,
     .help = "the summed gradient of bf16 and fp16; bf16 = other bits for another number of ranks"},
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
     .help = "what is cut among the ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 "
             "parameters too"},
    {.key = "zero.prefetch",
     .type = OPTION_INT,
     RANKS(prefetch),
     .fallback = "1",
     RANGE(0, 64),
     .help = "stage 3: units gathered ahead of the one that computes"},
    {.key = "zero.servers",
     .type = OPTION_INT,
     RANKS(servers),
     .fallback = "0",
     RANGE(0, 1e6),
     .help = "the last so many ranks are parameter servers: they own everything, compute nothing"},
    {.key = "zero.shard_group",
     .type = OPTION_INT,
     RANKS(shard_group),
     .fallback = "0",
     RANGE(0, 1e6),
     .help = "so many neighbouring ranks hold one copy of the state, others more copies; 0 = all "
             "ranks hold one"},
    {.key = "zero.accumulate",
     .type = OPTION_CHOICE,
     RANKS(accumulate),
     .fallback = "each",
     .choices = accumulate_words,
     .help = "send each micro-batch's gradient, or their sum once a step (local: needs "
             "run.deterministic: false)"},
    {.key = "comm.backend",
     .type = OPTION_CHOICE,
     RANKS(backend),
     .fallback = "auto",
     .choices = comm_backend_words,
     .help = "how ranks talk; threads = ranks in one process; nccl = from GPU to GPU, one for each "
             "rank; auto, nccl: ranks are processes where there is an mpirun, else threads"},
    {.key = "comm.timeout",
     .type = OPTION_REAL,
     RANKS(timeout),
     .fallback = "300",
     RANGE(0, 1e9),
     .help = "seconds after which a rank that does not arrive is named; 0 = never"},
    {.key = "comm.delay",
     .type = OPTION_REAL,
     RANKS(delay),
     .fallback = "0",
     RANGE(0, 60),
     .help = "for tests: wait up to so many seconds, at random, before and after every exchange"},
};
const struct option_table ranks_options = {
    .title = "ranks", .options = ranks_list, .count = COUNT(ranks_list)};

const char *const run_device_words[] = {"auto", "cpu", "cuda", NULL};
enum { PLACE_KEYS = 2 }; /* of the machine, the first: device and threads */
static const struct option machine_list[] = {
    {RUN(device, CHOICE), .fallback = "auto", .choices = run_device_words,
     .help = "where to compute; auto = cuda where there is a GPU"},
    {RUN(threads, INT), .also = "threads", .fallback = "0", RANGE(0, 4096),
     .help = "0 = as many as the process may run on"},
    {RUN(deterministic, BOOL), .fallback = "true",
     .help = "the same bits for any number of threads and ranks, and in every run; false = what is "
             "faster on a GPU (products chosen by timing, sums by NCCL)"},
    {RUN(peak_tflops, REAL), .fallback = "0", RANGE(0, 1e9),
     .help = "of this machine, for the column mfu; 0 = by the GPU's name, none for a CPU"},
    {RUN(stop_timeout, REAL), .fallback = "600", RANGE(0, 1e6),
     .help =
         "after a signal to stop: seconds without progress (at least three of the longest steps) "
         "after which the process ends with exit code 4; 0 = never"},
};
const struct option_table machine_options = {
    .title = "machine", .options = machine_list, .count = COUNT(machine_list)};
const struct option_table place_options = {
    .title = "machine", .options = machine_list, .count = PLACE_KEYS};
