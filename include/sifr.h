/* sifr -- train a model made of your own units; sifr's store holds parameters, gradients and
 * optimizer state.
 *
 * You describe a model as an ordered list of units. Each unit names its parameters, says how many
 * floats per token it keeps for backward, and has a forward and a backward function in plain C. The
 * last unit has a loss function instead. sifr calls them in the right order, sums gradients over
 * micro-batches, clips, and updates the parameters with AdamW. A unit never allocates, never reads
 * another unit's parameters and never depends on where they are stored: the same functions work
 * however the state is sharded.
 *
 * The library prints nothing and never exits. Functions return 0 on success; otherwise sifr_error()
 * returns a message. A context and the objects created from it must be used by one thread at a
 * time; different contexts are independent.
 *
 * Files are read through memory maps. The library installs a SIGBUS handler when it opens the first
 * file, so that a file which is truncated while mapped is an error and does not kill the process.
 * Faults outside its own maps go to the previous handler.
 *
 *     examples/ngram.c   a complete small language model that is not a transformer
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

/* --- context -------------------------------------------------------------------------------- */
struct sifr_context;

/* threads = 0: all processors that this process may use. `log` receives every log line; may be
 * NULL. */
SIFR_API int sifr_context_create(int threads, void (*log)(void *user, const char *line), void *user,
                                 struct sifr_context **context);
/* Destroy everything that was created from the context first. */
SIFR_API void sifr_context_destroy(struct sifr_context *context);
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
};

/* One call of a unit's function. Tensors are row-major floats; rows = batch * tokens. */
struct sifr_run {
    int64_t batch, tokens, rows;
    const int32_t *ids;         /* (batch, tokens) */
    const int32_t *labels;      /* (batch, tokens); -1 = masked */
    const float *const *params; /* in the unit's order */
    float *const *grads;        /* same order; to be overwritten. NULL in forward and evaluation */
    float *const *kept;         /* the unit's kept floats: (rows, kept[i]) each */
    const float *input;         /* (rows, width): from the previous unit; NULL for the first */
    float *output;              /* (rows, width): written by forward */
    /* (rows, width). In backward: the gradient of the output, to be replaced by that of the input.
     * In loss: to be set to the gradient of the input. NULL in evaluation. */
    float *gradient;
    float loss_scale;             /* factor of the loss gradient: 1 / (labels of the step) */
    double *loss;                 /* set by the loss function: sum over this micro-batch */
    struct sifr_context *context; /* for the helpers below */
};

enum { SIFR_MAX_KEPT = 16, SIFR_MAX_PARAMS = 16 };

struct sifr_unit {
    const char *name;
    void *user; /* passed to the functions */
    const struct sifr_param *params;
    int param_count;
    /* Floats per token that are kept from forward to backward; ends at the first 0. */
    int64_t kept[SIFR_MAX_KEPT];
    void (*forward)(void *user, const struct sifr_run *run);
    void (*backward)(void *user, const struct sifr_run *run);
    void (*loss)(void *user, const struct sifr_run *run); /* the last unit has only this one */
};

struct sifr_model {
    const struct sifr_unit *units;
    int unit_count;
    int64_t width; /* floats per token between units */
    int64_t vocab; /* ids are 0 .. vocab-1 */
};

/* --- training ------------------------------------------------------------------------------- */
struct sifr_options {
    int64_t batch, tokens; /* per micro-batch */
    int64_t micro_batches; /* per step */
    int recompute;         /* 1: rerun forward before backward instead of keeping floats */
    double beta1, beta2, eps, weight_decay;
    double clip;   /* of the global gradient norm; 0 = off */
    uint64_t seed; /* for the initial parameters */
};
/* beta1 0.9, beta2 0.95, eps 1e-8, weight decay 0.1, clip 1, one micro-batch per step with a batch
 * of one. Set batch and tokens. */
SIFR_API struct sifr_options sifr_options_default(void);

struct sifr_trainer;
/* The model's tables are copied; `user` pointers are kept. */
SIFR_API int sifr_trainer_create(struct sifr_context *context, const struct sifr_model *model,
                                 const struct sifr_options *options, struct sifr_trainer **trainer);
SIFR_API void sifr_trainer_destroy(struct sifr_trainer *trainer);

struct sifr_result {
    double loss;      /* mean over the labels of the step */
    double grad_norm; /* before clipping */
    int skipped;      /* the loss or a gradient was not finite; nothing was updated */
};
/* One optimizer step; ids and labels are (micro_batches, batch, tokens). Allocates nothing. */
SIFR_API int sifr_step(struct sifr_trainer *trainer, const int32_t *ids, const int32_t *labels,
                       double lr, struct sifr_result *result);
/* Mean loss of one micro-batch, (batch, tokens). */
SIFR_API int sifr_eval(struct sifr_trainer *trainer, const int32_t *ids, const int32_t *labels,
                       double *loss);

/* A whole parameter by name; `count` must be its number of elements. */
SIFR_API int sifr_read(struct sifr_trainer *trainer, const char *name, float *values,
                       int64_t count);
SIFR_API int sifr_write(struct sifr_trainer *trainer, const char *name, const float *values,
                        int64_t count);
/* All parameters as one safetensors file, which appears complete or not at all. */
SIFR_API int sifr_save(struct sifr_trainer *trainer, const char *path);

SIFR_API int64_t sifr_param_count(const struct sifr_trainer *trainer);
/* Bytes allocated now for "params", "grads", "optimizer", "slots", "activations", "scratch",
 * "loader" or "other". */
SIFR_API size_t sifr_memory(const struct sifr_trainer *trainer, const char *category);

/* --- helpers for units: multi-threaded, with the same bits for any number of threads -------- */
/* y (rows, out) = x (rows, in) w^T + bias; w is [out][in], bias may be NULL. */
SIFR_API void sifr_linear(const struct sifr_run *run, int64_t rows, int64_t in, int64_t out,
                          const float *x, const float *w, const float *bias, float *y);
/* dx = dy w (NULL: not needed), dw = dy^T x, dbias = column sums of dy (NULL: no bias). */
SIFR_API void sifr_linear_backward(const struct sifr_run *run, int64_t rows, int64_t in,
                                   int64_t out, const float *x, const float *w, const float *dy,
                                   float *dx, float *dw, float *dbias);
/* Softmax cross-entropy of (rows, vocab) logits with run->labels. Sets *run->loss. When
 * run->gradient is not NULL, the logits are replaced by their gradient. `losses` has room for
 * `rows` doubles. */
SIFR_API void sifr_cross_entropy(const struct sifr_run *run, int64_t vocab, float *logits,
                                 double *losses);

#ifdef __cplusplus
}
#endif
#endif
