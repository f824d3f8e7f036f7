/* sifr -- train a model made of your own units, on one rank or on many.
 *
 * You describe a model as an ordered list of units. Each unit names its parameters, says what it
 * keeps from its forward to its backward pass, and has both passes as functions in plain C. The
 * last unit has a loss function instead. sifr calls them in the right order, sums gradients over
 * micro-batches and ranks, clips, and updates the parameters. A unit never allocates, never reads
 * another unit's parameters and never depends on where they are stored. So the same functions work
 * on one rank and under every ZeRO stage, and give the same bits.
 *
 *     static int train(struct sifr_context *context, void *user);   one rank, from start to end
 *     sifr_run(&job, train, user);                                  runs it on every rank
 *
 * The library prints nothing and never exits. Functions return 0 on success and otherwise a value
 * of enum sifr_status; sifr_error() returns the message. "Collective" means: all ranks of the job
 * call the function, in the same order.
 *
 * Structs that you fill begin with their own size, and tables come with the size of an entry: set
 * both with sizeof, or use the initializers below. New versions only add fields at the end, and a
 * field that is missing or 0 keeps the old behavior. So a program runs with every later library of
 * the same SONAME.
 *
 *     docs/library.md   concepts, ownership, threads, a complete program, the table of calls
 *     examples/         ngram.c, classifier.c, gpt2.c
 */
#ifndef SIFR_H
#define SIFR_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIFR_API __attribute__((visibility("default")))

SIFR_API const char *sifr_version(void);

enum sifr_status { /* the same numbers in every version; new ones are added at the end */
                   SIFR_OK,
                   SIFR_IO,       /* a file or folder could not be read or written */
                   SIFR_FORMAT,   /* wrong content: of a file, or of the data of a step */
                   SIFR_MEMORY,   /* out of memory */
                   SIFR_DEVICE,   /* the device failed */
                   SIFR_COMM,     /* another rank failed or did not answer */
                   SIFR_CONFIG,   /* wrong options, a wrong model, or a wrong call */
                   SIFR_CALLBACK, /* a function of the program returned non-zero */
                   SIFR_INTERNAL
};

enum sifr_type { SIFR_F32, SIFR_BF16, SIFR_F16, SIFR_I32, SIFR_U8, SIFR_F64 };

/* A table: the array, its number of entries, and the size of an entry in this header. */
#define SIFR_TABLE(array) (array), (int)(sizeof(array) / sizeof *(array)), sizeof *(array)

/* --- a job: one or more ranks --------------------------------------------------------------- */
struct sifr_context; /* one rank; used by one thread at a time, as is everything created from it */

struct sifr_job {
    size_t size;
    int ranks;   /* 0: as mpirun or srun started them, or one; n: n threads of this process */
    int threads; /* that each rank computes with; 0: OMP_NUM_THREADS, or the cores, shared evenly */
    double timeout; /* seconds until a rank that does not answer is an error; 0: 600 */
    void (*log)(void *user, int rank, const char *line); /* may be NULL. With ranks as threads, it
                                                            is called by several threads at once */
    void *user;
    size_t device_memory; /* limit on the memory of a rank, in bytes: an allocation beyond it fails
                             with SIFR_MEMORY; 0: none */
    int bind; /* 1: each rank of a machine keeps to cores of its own, as with run.bind=auto of the
                 command. 0: the library changes no affinity */
};
/* Call `rank_main` for every rank of this process and return when all have returned: 0, or the
 * first failure. The context is valid inside `rank_main` only. If a rank fails, the collective
 * calls of the others fail with its message. `job` NULL: all defaults. */
SIFR_API int sifr_run(const struct sifr_job *job,
                      int (*rank_main)(struct sifr_context *context, void *user), void *user);
/* The same for a program that has its own order of calls; not for ranks as threads. Leave after
 * everything that was created from the context is destroyed. */
SIFR_API int sifr_join(const struct sifr_job *job, struct sifr_context **context);
SIFR_API void sifr_leave(struct sifr_context *context); /* NULL is fine */
SIFR_API int sifr_rank(const struct sifr_context *context);
SIFR_API int sifr_ranks(const struct sifr_context *context);
/* The first error since the last successful call; "" when there was none. */
SIFR_API const char *sifr_error(const struct sifr_context *context);

/* --- a model -------------------------------------------------------------------------------- */
enum sifr_init {
    SIFR_ZERO,
    SIFR_ONE,
    SIFR_NORMAL /* standard deviation `scale` */,
    SIFR_UNIFORM /* from -scale to scale */
};

struct sifr_param {
    const char *name; /* unique in the model; units that use the same name share it (tied) */
    int dims;         /* 1 to 4 */
    int64_t shape[4];
    enum sifr_init init;
    double scale;
    int decay; /* whether weight decay applies */
    /* For SIFR_MUON: a weight [rows][columns] of a hidden layer holds this many matrices of equal
     * width side by side; usually 1. 0: no such weight, but an embedding, a head or a vector, which
     * AdamW updates instead. */
    int64_t matrices;
};

/* A micro-batch has `batch` samples of `tokens` rows each (tokens = 1: a sample is one row). The
 * buffers of a unit, and what units pass to each other, have a number of elements per row. */
enum sifr_lifetime {
    SIFR_KEEP,    /* written by forward, read by backward; rebuilt by forward with recomputation */
    SIFR_SCRATCH, /* valid inside one pass only; passes share the memory */
    SIFR_BETWEEN  /* from SIFR_BACKWARD_INPUT to SIFR_BACKWARD_WEIGHT; scratch of SIFR_BACKWARD */
};
struct sifr_buffer {
    const char *name;
    int64_t per_row; /* elements per row */
    int64_t fixed;   /* elements in addition; both 0: no memory, such as scratch of 0 bytes */
    enum sifr_type type;
    enum sifr_lifetime lifetime;
};

enum sifr_pass {
    SIFR_FORWARD,
    SIFR_RECOMPUTE, /* forward again, to rebuild kept buffers; the output is not used */
    SIFR_BACKWARD,
    SIFR_BACKWARD_INPUT,  /* the first part of backward, for units that have `weights` */
    SIFR_BACKWARD_WEIGHT, /* the second part */
    SIFR_LOSS,            /* loss and gradients */
    SIFR_EVAL             /* loss only */
};

/* One call of a unit's function. Tensors are row-major. `type` is that of parameters, gradients and
 * the stream between units; it is SIFR_F32 in this version. */
struct sifr_call {
    size_t size; /* of this struct in the library */
    enum sifr_pass pass;
    enum sifr_type type;
    int64_t batch, tokens, rows; /* rows = batch * tokens */
    const void *const *inputs;   /* the model's inputs: (batch, count) each */
    const int32_t *ids, *labels; /* inputs of those names; NULL: the model has none */
    const void *const *params;   /* in the unit's order; NULL in SIFR_BACKWARD_WEIGHT */
    void *const *grads;          /* same order; to be overwritten. NULL in passes that write none */
    void *const *buffers;        /* in the unit's order */
    const void *input;           /* (rows, width of the previous unit); NULL for the first unit */
    /* With `adds`, in forward: what the previous unit passed on (pending may be NULL), and where
     * their sum goes. `sum` is `input`. */
    const void *residual, *pending;
    void *sum;
    void *output; /* (rows, width): written by forward */
    /* (rows, width). In backward: the gradient of the output, to be replaced by that of the input.
     * In loss: to be set to the gradient of the input. NULL elsewhere. With `residual`, it is the
     * gradient of both summands. Where the widths differ, there is room for the larger one. */
    void *gradient;
    float loss_scale; /* the loss gradient is multiplied by it; it contains 1 / (count of the step)
                         and, in fp16, the loss scale */
    double *loss;     /* set by the loss function: the sum over this micro-batch */
    float *statistic; /* `statistics` floats of this unit, 0 at the first pass of a micro-batch: add
                         to them. NULL in SIFR_RECOMPUTE and SIFR_EVAL */
    struct sifr_context *context; /* for the helpers */
};

enum { SIFR_MAX_BUFFERS = 24, SIFR_MAX_PARAMS = 16, SIFR_MAX_INPUTS = 8 };
#define SIFR_ADD_INPUT     (-1)
#define SIFR_ADD_BUFFER(i) ((i) + 1)

struct sifr_unit {
    const char *name;
    void *user; /* passed to the functions; with ranks as threads it is used by several at once */
    int64_t width; /* elements per row of the output; 0 for the last unit */
    const struct sifr_param *params;
    int param_count;
    size_t param_size; /* of an entry; SIFR_TABLE sets all three */
    const struct sifr_buffer *buffers;
    int buffer_count;
    size_t buffer_size;
    void (*forward)(void *user, const struct sifr_call *call);
    void (*backward)(void *user, const struct sifr_call *call);
    /* Optional. If set, backward may also be called with SIFR_BACKWARD_INPUT: it then writes no
     * gradients of parameters, and `weights` writes them later, from kept buffers. Pipelines use
     * this. Both ways must give the same bits. */
    void (*weights)(void *user, const struct sifr_call *call);
    void (*loss)(void *user, const struct sifr_call *call); /* the last unit has only this one */
    /* What the output is added to, to form the next unit's input: 0 = nothing, SIFR_ADD_INPUT = the
     * unit's input, SIFR_ADD_BUFFER(i) = its buffer i, of the same width. The library adds them, or
     * the next unit does if it has `adds`. */
    int residual;
    int adds;           /* 1: forward itself computes input = residual + pending (sifr_norm) */
    int64_t statistics; /* floats that are summed over the micro-batches of a step */
    double work;        /* operations per row of a forward pass, to balance pipelines; 0: guess */
};

struct sifr_input { /* an array of the data */
    const char *name;
    enum sifr_type type; /* SIFR_I32, SIFR_F32 or SIFR_U8 */
    int64_t count;       /* elements per sample */
    int64_t limit;       /* SIFR_I32: values are 0 .. limit-1, and -1 with `masked`; 0: any */
    int masked;
};

struct sifr_model {
    size_t size;
    const struct sifr_unit *units;
    int unit_count;
    size_t unit_size;
    /* Inputs of a step. None: "ids" and "labels", SIFR_I32, `tokens` per sample, below `vocab`;
     * labels of -1 are masked. */
    const struct sifr_input *inputs;
    int input_count;
    size_t input_size;
    int64_t vocab;
    /* What the summed loss of a micro-batch is divided by, added over the step before the first
     * pass: a number of labels, or a sum of weights. NULL: labels that are not -1, or without
     * labels the samples. */
    double (*count)(void *user, int64_t batch, int64_t tokens, const void *const *inputs);
    void *user;
};

/* --- training ------------------------------------------------------------------------------- */
enum sifr_recompute { SIFR_KEEP_ALL, SIFR_RECOMPUTE_ALL };
enum sifr_schedule { SIFR_1F1B, SIFR_GPIPE, SIFR_INTERLEAVED, SIFR_ZERO_BUBBLE };

enum sifr_optimizer {
    SIFR_INHERIT, /* of a group: that of the options. Of the options: SIFR_ADAMW */
    SIFR_ADAMW,
    SIFR_ADAMW8BIT, /* m and v in 8 bits */
    SIFR_SGD,
    SIFR_MUON /* for parameters with `matrices`; AdamW for the others */
};

struct sifr_group {    /* the last group that matches a parameter's name applies */
    const char *match; /* glob, such as "block.*.bias" */
    double lr_mul, wd_mul;
    /* Instead of what the options say. 0: no difference; -1: the value 0, or no. */
    enum sifr_optimizer optimizer;
    int nesterov;
    double momentum, beta1, beta2, weight_decay;
    double eps; /* 0: no difference */
};

/* A range of the summed gradient of one parameter. Values are still multiplied by `scale`. */
struct sifr_gradient {
    size_t size;
    const char *name;
    int64_t offset, count; /* elements of the parameter */
    enum sifr_type type;
    void *values; /* may be changed */
    double scale;
    int64_t step;
    struct sifr_trainer *trainer; /* for sifr_statistic */
};

/* State and activations in slower memory than the device's: a model may then be larger than the
 * memory. It changes no bits; docs/offload.md says what leaves, and when. The device of this version
 * is the CPU, and its memory the host's, so SIFR_ON_HOST moves nothing. */
enum sifr_place {
    SIFR_ON_DEVICE,
    SIFR_ON_HOST,
    SIFR_ON_DISK /* in files without a name: nothing is left of them when the program ends */
};
enum sifr_update { SIFR_UPDATE_AUTO, SIFR_UPDATE_ON_DEVICE, SIFR_UPDATE_ON_HOST };

struct sifr_offload {
    size_t size;
    enum sifr_place optimizer; /* masters, m and v */
    /* Summed gradients, where a rank has their sum to itself. Those of tied parameters stay on the
     * device. With a `gradient` function all of them do, since it sees and changes them there. */
    enum sifr_place grads;
    double share;   /* of the optimizer's bytes that leave, above 0 and at most 1; 0: all of them */
    int64_t window; /* bytes of device memory through which state passes; 0: 512 MB */
    const char *folder;      /* of the files; it must exist. NULL or "": $TMPDIR, else /var/tmp */
    enum sifr_update update; /* who updates state on the host; auto: the device, for now */
    int unused;              /* never read: older programs have padding here, with any value */
    enum sifr_place params;  /* read unit by unit, and sharded as in ZeRO stage 3 */
    /* What units keep from forward to backward, except the last three: SIFR_ON_DEVICE or
     * SIFR_ON_HOST, which does not work with `pipeline` above 1. */
    enum sifr_place activations;
};

struct sifr_result;

/* How a save ended. */
struct sifr_saved {
    size_t size;
    int64_t step;
    const char *path;  /* of the checkpoint; "" if it was not saved */
    const char *error; /* "" if it was */
    double seconds;
};

struct sifr_options {
    size_t size;
    int64_t batch, tokens; /* of a micro-batch; required */
    int64_t micro_batches; /* of a step, over all ranks */
    enum sifr_recompute recompute;
    enum sifr_type precision; /* of parameters and gradients: SIFR_F32, SIFR_BF16, SIFR_F16 */
    enum sifr_type sum;       /* of the summed gradient: SIFR_F32 or SIFR_BF16 */
    int stochastic;           /* 1: round parameters to 16 bits at random (bf16) */
    int stage;                /* ZeRO stage, 0 to 3 */
    int prefetch;             /* units ahead of compute whose parameters are gathered */
    int servers;              /* the last ranks own all shards and compute nothing; 0: none */
    int shard_group;          /* ranks that hold one copy of the state together; 0: all */
    int sum_locally; /* 1: each rank sums its micro-batches first, in the type `sum`: less traffic,
                        but all gradients on every rank, and the bits depend on their number */
    int pipeline;    /* PP stages; 0 or 1: none */
    enum sifr_schedule schedule;
    int chunks; /* per PP stage; 0: 2 if interleaved, else 1 */
    int eager;  /* 1: up to twice as many micro-batches in flight, to hide slow messages */
    double beta1, beta2, eps, weight_decay;
    double clip; /* of the global gradient norm; 0 = off */
    const struct sifr_group *groups;
    int group_count;
    size_t group_size;
    uint64_t seed; /* of the initial parameters */
    /* Called after the gradients of a step are summed and before their norm is computed: once for
     * each element of each parameter, on the rank that sums it. Non-zero fails the step on all
     * ranks. May be NULL. */
    int (*gradient)(void *user, const struct sifr_gradient *gradient);
    /* Called on every rank at the end of each step, of each evaluation, and when it is known how a
     * save ended: at once, or for saves in the background in a later step. May be NULL. */
    void (*stepped)(void *user, const struct sifr_result *result);
    void (*evaluated)(void *user, const struct sifr_result *result);
    void (*saved)(void *user, const struct sifr_saved *saved);
    void *user; /* of these four; with ranks as threads it is used by several at once */
    int64_t checkpoint_keep; /* older checkpoints of the same folder are removed; 0: all are kept */
    int checkpoint_async; /* 1: checkpoints are written in the background, from a copy in memory */
    int checked; /* 1: guard zones around buffers, gradients that are not written. Slow. The
                    environment variable SIFR_CHECKED=1 sets it, too */
    enum sifr_optimizer optimizer;
    int nesterov;    /* SIFR_SGD, SIFR_MUON: 1: yes, -1: no; 0: yes for muon, no for sgd */
    double momentum; /* SIFR_SGD, SIFR_MUON: above 0 and below 1; -1: none; 0: 0.9 for sgd, 0.95 for
                        muon */
    int noise_scale; /* 1: measure the parts of the gradient noise scale; needs at least two
                        micro-batches */
    const struct sifr_offload *offload; /* NULL: all state is on the device */
};
/* AdamW with beta1 0.9, beta2 0.95, eps 1e-8, weight decay 0.1, clip 1; one micro-batch per step;
 * stage 0, prefetch 1, fp32. Set batch and tokens. */
#define sifr_options_init(options) sifr_options_default(options, sizeof *(options))
SIFR_API void sifr_options_default(struct sifr_options *options, size_t size);

struct sifr_trainer;
/* The tables and `offload` are copied; `user` pointers are kept. Parameters have their initial
 * values, the same on any number of ranks. Collective. Destroy is not, but do it on all ranks. */
SIFR_API int sifr_trainer_create(struct sifr_context *context, const struct sifr_model *model,
                                 const struct sifr_options *options, struct sifr_trainer **trainer);
SIFR_API void sifr_trainer_destroy(struct sifr_trainer *trainer); /* NULL is fine */

/* Whether this rank computes micro-batch m, of a step or of an evaluation. A server has none. */
SIFR_API int sifr_is_mine(const struct sifr_trainer *trainer, int64_t m);

/* The data of several micro-batches: one array per input, in the model's order. */
struct sifr_batch {
    size_t size;
    const void *const *inputs;
    int own; /* 0: arrays hold all micro-batches, (micro_batches, batch, count). 1: only those of
                this rank, in ascending order; a rank without any passes anything */
};

struct sifr_result {
    size_t size;             /* of your struct; sifr fills as much */
    double loss;             /* mean over the count of the step */
    double count;            /* number of labels, samples, or sum of weights */
    double grad_norm;        /* before clipping */
    int skipped;             /* the loss or a gradient was not finite; nothing was updated */
    double loss_scale;       /* fp16 */
    char bad_param[96];      /* skipped: first parameter with a non-finite gradient; "" = none */
    int64_t bad_element;     /* in it */
    int64_t bad_micro_batch; /* first one whose loss is not finite; -1: none */
    /* With noise_scale: estimates, by this step alone, of the squared norm of the true gradient and
     * of the trace of the covariance of one sample's gradient. Average each over many steps, then
     * divide: trace / square is the noise scale, in samples. NAN: not known. */
    double noise_square, noise_trace;
};
/* One optimizer step. Allocates nothing. Collective. */
SIFR_API int sifr_step(struct sifr_trainer *trainer, const struct sifr_batch *batch, double lr,
                       struct sifr_result *result);
/* The loss of `micro_batches` micro-batches without an update. Collective. */
SIFR_API int sifr_eval(struct sifr_trainer *trainer, const struct sifr_batch *batch,
                       int64_t micro_batches, struct sifr_result *result);
/* The short way for models with ids and labels, where every rank has the whole step's data. */
SIFR_API int sifr_step_tokens(struct sifr_trainer *trainer, const int32_t *ids,
                              const int32_t *labels, double lr, struct sifr_result *result);
SIFR_API int sifr_eval_tokens(struct sifr_trainer *trainer, const int32_t *ids,
                              const int32_t *labels, int64_t micro_batches,
                              struct sifr_result *result);
/* The statistic of a unit: the sum over the micro-batches of the last step in their order, with the
 * same bits on every layout. Valid on every rank, from the gradient hook to the next step. */
SIFR_API int sifr_statistic(struct sifr_trainer *trainer, const char *unit, float *values,
                            int64_t count);

/* --- parameters and state ------------------------------------------------------------------- */
/* A whole parameter by name, in fp32; `count` is its number of elements. Collective. */
SIFR_API int sifr_read(struct sifr_trainer *trainer, const char *name, float *values,
                       int64_t count);
SIFR_API int sifr_write(struct sifr_trainer *trainer, const char *name, const float *values,
                        int64_t count);
/* All parameters as one safetensors file, which appears complete or not at all; and back, by name
 * (the file may hold more). Collective. */
SIFR_API int sifr_save(struct sifr_trainer *trainer, const char *path);
SIFR_API int sifr_load(struct sifr_trainer *trainer, const char *path);

/* Save parameters and optimizer state as FOLDER/step-N, N = steps so far, with `bytes` bytes of the
 * program's own (of rank 0; may be NULL). With checkpoint_async it returns once the state is
 * copied; sifr_checkpoint_wait waits for the files and returns the failure of the last save.
 * Collective. */
SIFR_API int sifr_checkpoint(struct sifr_trainer *trainer, const char *folder, const void *blob,
                             size_t bytes);
SIFR_API int sifr_checkpoint_wait(struct sifr_trainer *trainer);
/* Load the newest complete checkpoint of FOLDER, saved by any number of ranks in any layout.
 * Sets *step to its step, or to 0 if there is no checkpoint; then nothing else changes. `blob`
 * (room for *bytes; NULL: not wanted) receives the program's own state, and *bytes its size.
 * Collective. */
SIFR_API int sifr_resume(struct sifr_trainer *trainer, const char *folder, int64_t *step,
                         void *blob, size_t *bytes);

SIFR_API int64_t sifr_param_count(const struct sifr_trainer *trainer);

/* --- memory and traffic --------------------------------------------------------------------- */
enum sifr_memory_kind {
    SIFR_PARAMS,
    SIFR_GRADS,
    SIFR_OPTIMIZER,
    SIFR_SLOTS,
    SIFR_ACTIVATIONS,
    SIFR_SCRATCH_MEMORY,
    SIFR_LOADER,
    SIFR_OTHER,
    SIFR_DISK, /* files of offloaded state: bytes on disk, which are no memory */
    SIFR_MEMORY_KINDS
};
struct sifr_plan {
    size_t size;
    size_t bytes[16]; /* of a rank, by enum sifr_memory_kind */
    size_t total;     /* of memory: without SIFR_DISK */
    double sent;      /* bytes that the rank sends in a step */
};
/* What rank `rank` of `ranks` will need, before anything is allocated. Not collective. */
SIFR_API int sifr_plan(struct sifr_context *context, const struct sifr_model *model,
                       const struct sifr_options *options, int ranks, int rank,
                       struct sifr_plan *plan);
/* What this rank has allocated now. */
SIFR_API size_t sifr_memory(const struct sifr_trainer *trainer, enum sifr_memory_kind kind);

/* --- helpers for units: multi-threaded, with the same bits for any number of threads -------- */
/* Helpers work on arrays of call->type. They are called inside a unit's functions only. */

/* Fail the step, on all ranks, with this message. The function should return. */
SIFR_API void sifr_fail(const struct sifr_call *call, const char *message);

/* Arguments of the larger helpers: SIFR_ARGS(sifr_norm, .rows = rows, ...). */
#define SIFR_ARGS(type, ...) (&(struct type){sizeof(struct type), __VA_ARGS__})

/* y (rows, out) = x (rows, in) w^T + bias; w is [out][in], bias may be NULL. */
SIFR_API void sifr_linear(const struct sifr_call *call, int64_t rows, int64_t in, int64_t out,
                          const void *x, const void *w, const void *bias, void *y);
/* dx = dy w, dw = dy^T x, dbias = column sums of dy, which needs dw; NULL: not wanted. dx may be
 * x. */
SIFR_API void sifr_linear_backward(const struct sifr_call *call, int64_t rows, int64_t in,
                                   int64_t out, const void *x, const void *w, const void *dy,
                                   void *dx, void *dw, void *dbias);
/* pre = x w^T + bias; y = gelu(pre), in the tanh form. */
SIFR_API void sifr_linear_gelu(const struct sifr_call *call, int64_t rows, int64_t in, int64_t out,
                               const void *x, const void *w, const void *bias, void *pre, void *y);
/* Of a linear layer whose input was gelu(pre): dpre = (dy w) * gelu'(pre); dbias (in) = its column
 * sums, or NULL. */
SIFR_API void sifr_linear_gelu_backward(const struct sifr_call *call, int64_t rows, int64_t in,
                                        int64_t out, const void *dy, const void *w, const void *pre,
                                        void *dpre, void *dbias);

/* rows of `table` (vocab, width) by id, plus rows of `positions` (tokens, width) or NULL. */
SIFR_API void sifr_embedding(const struct sifr_call *call, int64_t width, int64_t vocab,
                             const int32_t *ids, const void *table, const void *positions, void *y);
/* dpositions NULL: none. scratch: sifr_embedding_scratch bytes. */
SIFR_API void sifr_embedding_backward(const struct sifr_call *call, int64_t width, int64_t vocab,
                                      const int32_t *ids, const void *dy, void *dtable,
                                      void *dpositions, void *scratch);

enum sifr_norm_kind { SIFR_LAYER_NORM, SIFR_RMS_NORM };
struct sifr_norm {
    size_t size;
    enum sifr_norm_kind kind;
    int64_t rows, width;
    double eps;
    const void *residual, *pending; /* sum = residual + pending; pending may be NULL */
    const void *weight, *bias;      /* (width); bias may be NULL */
    void *sum;                      /* (rows, width); may be `residual`, or NULL without pending */
    void *y;                        /* (rows, width) */
    float *mean, *rstd;             /* (rows); RMS norm does not use `mean` */
};
SIFR_API void sifr_norm(const struct sifr_call *call, const struct sifr_norm *norm);
struct sifr_norm_backward {
    size_t size;
    enum sifr_norm_kind kind;
    int64_t rows, width;
    double eps;
    const void *dy, *sum, *weight;
    const float *mean, *rstd;
    const void *dsum;      /* or NULL: another gradient of the sum, which is added */
    void *dsum_out;        /* (rows, width); may be `dsum` or `dy` */
    void *dweight, *dbias; /* (width) or NULL */
    /* (width), both or neither: column sums of dsum and dsum_out, the gradients of biases that were
     * added to the sum and to what it was formed from. */
    void *dsum_columns, *out_columns;
    void *scratch; /* sifr_norm_scratch bytes */
};
SIFR_API void sifr_norm_backward(const struct sifr_call *call,
                                 const struct sifr_norm_backward *norm);

/* qkv (rows, (heads + 2 kv_heads) head_width): query heads, then key heads, then value heads. */
struct sifr_attention {
    size_t size;
    int64_t heads, kv_heads, head_width;
    const void *qkv;
    void *out;     /* (rows, heads * head_width) */
    float *lse;    /* (rows * heads), kept for the backward pass */
    void *scratch; /* sifr_attention_scratch bytes */
    /* backward */
    const void *dout;  /* (rows, heads * head_width) */
    void *dqkv;        /* like qkv */
    void *dbias;       /* column sums of dqkv, or NULL */
    const float *rope; /* the table with which qkv was rotated, or NULL: dqkv is that of the qkv
                          before */
};
SIFR_API void sifr_attention(const struct sifr_call *call, const struct sifr_attention *attention);
SIFR_API void sifr_attention_backward(const struct sifr_call *call,
                                      const struct sifr_attention *attention);
/* Rotate queries and keys in place; table (tokens, head_width / 2, 2) has cos and sin, and
 * sifr_rope_table fills it. */
SIFR_API void sifr_rope(const struct sifr_call *call, int64_t heads, int64_t kv_heads,
                        int64_t head_width, const float *table, void *qkv);
SIFR_API void sifr_rope_table(int64_t tokens, int64_t head_width, double base, float *table);

/* y (rows, ff) = silu(gate) * up; gate_up (rows, 2 ff). */
SIFR_API void sifr_swiglu(const struct sifr_call *call, int64_t rows, int64_t ff,
                          const void *gate_up, void *y);
/* dgate_up may be gate_up. */
SIFR_API void sifr_swiglu_backward(const struct sifr_call *call, int64_t rows, int64_t ff,
                                   const void *gate_up, const void *dy, void *dgate_up);

/* Softmax cross-entropy of (rows, vocab) logits with `labels` (-1: no loss). Sets *call->loss. In
 * SIFR_LOSS the logits are replaced by their gradient. losses: `rows` doubles. */
SIFR_API void sifr_cross_entropy(const struct sifr_call *call, int64_t vocab, const int32_t *labels,
                                 void *logits, double *losses);
/* The same for logits = x w^T, computed in chunks of rows, so that (rows, vocab) logits never
 * exist. In SIFR_LOSS also dx (rows, in) and dw. logits: sifr_logits_count elements. */
SIFR_API void sifr_linear_cross_entropy(const struct sifr_call *call, int64_t in, int64_t vocab,
                                        const void *x, const void *w, const int32_t *labels,
                                        void *logits, double *losses, void *dx, void *dw);

/* Sizes of scratch buffers, in bytes or elements, for a micro-batch of batch x tokens rows. */
SIFR_API int64_t sifr_norm_scratch(const struct sifr_context *context, int64_t rows, int64_t width);
SIFR_API int64_t sifr_attention_scratch(const struct sifr_context *context, int64_t batch,
                                        int64_t tokens, int64_t heads, int64_t kv_heads,
                                        int64_t head_width);
SIFR_API int64_t sifr_embedding_scratch(const struct sifr_context *context, int64_t batch,
                                        int64_t tokens, int64_t width, int64_t vocab);
SIFR_API int64_t sifr_logits_count(const struct sifr_context *context, int64_t rows, int64_t vocab);

#ifdef __cplusplus
}
#endif
#endif
