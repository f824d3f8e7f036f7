/* sifr -- train a model made of your own units, with parameters, gradients and optimizer state
 * kept by sifr's store.
 *
 * You describe a model as an ordered list of units: each names its parameters, says how many
 * floats it wants to keep for every token, and has a forward and a backward function in plain C.
 * The last unit has a loss function instead. sifr calls them in the right order, sums gradients
 * over micro-batches, clips, and updates the parameters with AdamW. A unit never allocates, never
 * reads another unit's parameters and never depends on where they are kept: the same functions work
 * however the state is sharded.
 *
 * The library prints nothing and never exits. Functions return 0 on success; otherwise sifr_error()
 * returns a message. A context and the objects created from it belong to one thread at a time;
 * different contexts are independent.
 *
 * Files are read through memory maps. The library installs a SIGBUS handler with the first file, so
 * that a file which is truncated while mapped is an error and does not kill the process. Faults
 * outside its own maps go to the previous handler.
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

/* `threads` 0: all processors that this process may use. `log` receives every log line; or NULL. */
SIFR_API int sifr_context_create(int threads, void (*log)(void *user, const char *line), void *user,
                                 struct sifr_context **context);
SIFR_API void
sifr_context_destroy(struct sifr_context *context); /* after all that was made from it */
/* The first error since the last call that succeeded, "" when there is none. */
SIFR_API const char *sifr_error(const struct sifr_context *context);

/* --- a model -------------------------------------------------------------------------------- */
enum sifr_init {
    SIFR_ZERO,
    SIFR_ONE,
    SIFR_NORMAL /* deviation scale */,
    SIFR_UNIFORM /* +- scale */
};

struct sifr_param {
    const char *name; /* unique in the model; two units that name the same one share it (tied) */
    int dims;         /* 1 to 4 */
    int64_t shape[4];
    enum sifr_init init;
    double scale;
    int decay; /* weight decay applies to it */
};

/* One call of a unit's function. Tensors are row-major floats; rows = batch * tokens. */
struct sifr_run {
    int64_t batch, tokens, rows;
    const int32_t *ids;         /* (batch, tokens) */
    const int32_t *labels;      /* (batch, tokens), -1 = not counted */
    const float *const *params; /* as the unit lists them */
    float *const *grads;        /* the same, to be overwritten; NULL in forward and in evaluation */
    float *const *kept;         /* the unit's kept floats: (rows, kept[i]) each */
    const float *input;         /* (rows, width): the unit before; NULL for the first unit */
    float *output;              /* (rows, width): forward */
    float *
        gradient; /* (rows, width): backward: of the output in, of the input out; loss: of the input
                                      out. NULL in evaluation */
    float loss_scale;             /* factor of the loss gradient: 1 / (labels of the step) */
    double *loss;                 /* loss: sum of the losses of this micro-batch, to be set */
    struct sifr_context *context; /* for the helpers below */
};

enum { SIFR_MAX_KEPT = 16, SIFR_MAX_PARAMS = 16 };

struct sifr_unit {
    const char *name;
    void *user; /* handed to the functions */
    const struct sifr_param *params;
    int param_count;
    int64_t kept
        [SIFR_MAX_KEPT]; /* floats a token, kept from forward to backward; ends at the first 0 */
    void (*forward)(void *user, const struct sifr_run *run);
    void (*backward)(void *user, const struct sifr_run *run);
    void (*loss)(void *user, const struct sifr_run *run); /* the last unit has this one only */
};

struct sifr_model {
    const struct sifr_unit *units;
    int unit_count;
    int64_t width; /* floats a token between units */
    int64_t vocab; /* ids are 0 .. vocab-1 */
};

/* --- training ------------------------------------------------------------------------------- */
struct sifr_options {
    int64_t batch, tokens; /* of a micro-batch */
    int64_t micro_batches; /* of a step */
    int recompute; /* 1: run forward again before backward instead of keeping the units' floats */
    double beta1, beta2, eps, weight_decay;
    double clip;   /* of the global gradient norm; 0 = off */
    uint64_t seed; /* of the initial parameters */
};
/* 0.9, 0.95, 1e-8, 0.1, clip 1, one micro-batch of one; set batch and tokens. */
SIFR_API struct sifr_options sifr_options_default(void);

struct sifr_trainer;
/* The model's tables are copied; `user` pointers are kept. */
SIFR_API int sifr_trainer_create(struct sifr_context *context, const struct sifr_model *model,
                                 const struct sifr_options *options, struct sifr_trainer **trainer);
SIFR_API void sifr_trainer_destroy(struct sifr_trainer *trainer);

struct sifr_result {
    double loss;      /* mean over the labels of the step */
    double grad_norm; /* before clipping */
    int skipped;      /* the loss or a gradient was not finite: nothing was changed */
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
/* All parameters as one safetensors file, written whole or not at all. */
SIFR_API int sifr_save(struct sifr_trainer *trainer, const char *path);

SIFR_API int64_t sifr_param_count(const struct sifr_trainer *trainer);
/* Bytes held now for "params", "grads", "optimizer", "slots", "activations", "scratch",
 * "loader", "other". */
SIFR_API size_t sifr_memory(const struct sifr_trainer *trainer, const char *category);

/* --- helpers for units: threaded, and the same bits for any number of threads --------------- */
/* y (rows, out) = x (rows, in) w^T + bias; w is [out][in], bias may be NULL. */
SIFR_API void sifr_linear(const struct sifr_run *run, int64_t rows, int64_t in, int64_t out,
                          const float *x, const float *w, const float *bias, float *y);
/* dx = dy w (NULL: not wanted), dw = dy^T x, dbias = column sums of dy (NULL: none). */
SIFR_API void sifr_linear_backward(const struct sifr_run *run, int64_t rows, int64_t in,
                                   int64_t out, const float *x, const float *w, const float *dy,
                                   float *dx, float *dw, float *dbias);
/* Softmax cross-entropy of (rows, vocab) logits against run->labels: sets *run->loss; when
 * run->gradient is not NULL the logits become their gradient. `losses` has room for `rows`
 * doubles. */
SIFR_API void sifr_cross_entropy(const struct sifr_run *run, int64_t vocab, float *logits,
                                 double *losses);

#ifdef __cplusplus
}
#endif
#endif
