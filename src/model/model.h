/* model -- GPT-2, Llama and its relatives, and SARS as units: sizes, presets, and the graph that
 * store and engine work on.
 *
 * Tensors have the names and the orientation of Hugging Face files, so loading and saving need no
 * conversion: GPT-2's matrices are [in][out], Llama's [out][in].
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H
#include "base/options.h"
#include "model/rope.h"
#include "unit/unit.h"

enum model_arch {
    MODEL_GPT2,
    MODEL_LLAMA,
    MODEL_SARS,
    MODEL_QWEN2,
    MODEL_QWEN3,
    MODEL_MISTRAL,
    MODEL_SMOLLM3,
    MODEL_PHI3,
    MODEL_OLMO2,
    MODEL_GEMMA2,
    MODEL_GEMMA3,
    MODEL_ARCHS
};
const char *model_arch_word(int arch); /* the value of model.arch: "llama" */
/* What the layers of an architecture consist of. model_keys.c has the table. */
struct model_traits {
    bool llama;      /* a relative of Llama: its names, RMS norms, rotary positions, a gated MLP */
    bool qkv_bias;   /* q, k and v always have biases */
    bool head_norm;  /* each head's q and k is normed before it is rotated */
    bool whole_norm; /* all heads' q, and all heads' k, have one norm */
    bool no_pre_norms; /* no norms before attention and MLP */
    bool post_norms;   /* norms of the outputs of attention and MLP, before they are added */
    bool plus_one;     /* norms multiply by 1 + weight */
    bool geglu;        /* the gate is GELU, not SiLU */
    bool fused;        /* q, k and v are one tensor, and so are gate and up */
    bool scaled;       /* embeddings are multiplied by sqrt(width) */
    /* Keys that the architecture has: */
    bool attention_bias, mlp_bias, window, nope, caps;
    bool window_some; /* a part of the layers may have the window: window_from, full_every */
    bool part, local; /* rope_part, rope_local */
};
const struct model_traits *model_traits(int arch);

/* sars.*: how a SARS model is trained, and whether its positions are rotated. docs/sars.md */
enum sars_gate {
    SARS_GATE_GLOBAL, /* the goodness of the whole step gates its gradient */
    SARS_GATE_LOCAL,  /* that of each micro-batch gates the gradient of the micro-batch */
    SARS_GATE_OFF
};
struct sars_config {
    int gate;           /* enum sars_gate */
    int sign;           /* 0: the second loss has logits + G, 1: logits - G */
    bool standardise;   /* G of each token is standardised in the second loss */
    bool rope;          /* queries and keys are rotated by their positions */
    double meta_weight; /* of the second loss */
    double meta_clip;   /* of the norm of its gradient; 0 = off */
    double clamp;       /* of each element of the first loss's gradient; 0 = off */
};

/* A block's part of the statistic, in the order of the layers: sums over the tokens of a step for
 * the projections q, k, v, o of C neurons each. */
enum { SARS_KINDS = 4 };
enum sars_statistic {
    SARS_GOODNESS, /* (4, C) */
    SARS_ACTIVE,   /* (4, C) tokens for which the neuron is active */
    SARS_ENTROPY,  /* (4) */
    SARS_STATISTICS
};
/* Where a part of it begins; that of SARS_STATISTICS is its length. */
static inline int64_t sars_statistic_at(enum sars_statistic part, int64_t width)
{
    return part < SARS_STATISTICS ? (int64_t)part * SARS_KINDS * width
                                  : SARS_KINDS * (2 * width + 1);
}

/* Sizes. 0 (2 for tied) means: from the preset, or derived. model_resolve fills in every field. */
struct model_config {
    int preset; /* index into model_presets; 0 = none */
    int arch;   /* enum model_arch */
    int64_t layers, heads, kv_heads, width, ff, context, vocab;
    int64_t head_width;  /* width / heads unless a file says otherwise */
    bool attention_bias; /* q, k, v and o have biases */
    bool mlp_bias;       /* gate, up and down have biases */
    /* Layers that differ. Layer i, from 0, is one of "every n-th" if n divides i + 1. */
    int64_t window;       /* a query sees itself and the window - 1 keys before; 0 = all before */
    int64_t window_from;  /* the first layer with the window */
    int64_t full_every;   /* N: every Nth layer has no window; 0: all have one */
    int64_t nope_every;   /* N: every Nth layer has no rotary positions; 0: all have them */
    int64_t query_scalar; /* scores are divided by its square root; 0 = head_width */
    double score_cap;     /* scores become cap tanh(score / cap); 0 = they do not */
    double logit_cap;     /* the same for logits */
    int gelu;             /* of gpt2: 0 tanh form, 1 exact (choices tanh|exact) */
    int tied;             /* 0 no, 1 yes, 2 from the preset or architecture (choices no|yes|auto) */
    double norm_eps;
    double init_std;
    double rope_theta;
    int rope_scaling; /* enum rope_scaling */
    double rope_factor, rope_low, rope_high;
    int64_t rope_original;   /* original_max_position_embeddings */
    struct rope_extras rope; /* model.rope_part ... */
    const char *path;        /* a Hugging Face directory to start from; "" = none */
    struct sars_config sars; /* where arch is MODEL_SARS */
    const char *freeze;      /* for unit_freeze; NULL or "" = every param is trained */
};

extern const struct option_table model_options; /* model.* over struct model_config */
extern const struct option_table sars_options;  /* sars.* over struct model_config */

/* Fill in what the user did not set, from the preset or derived, and check. Errors name the key,
 * the problem and a fix ("model.heads: 6 does not divide model.width 128; try 4 or 8"). */
enum status model_resolve(struct env *env, const struct options *options,
                          struct model_config *config);
/* Check a complete configuration (as read from a file). */
enum status model_check(struct env *env, const struct model_config *config);
/* Refuse keys of another architecture whose values are not the default. `options` has sars_options.
 */
enum status model_check_keys(struct env *env, struct options *options,
                             const struct model_config *config);

/* Refuse keys that say something else than `file`, the model at asked->path. */
enum status model_check_given(struct env *env, const struct options *options,
                              const struct model_config *asked, const struct model_config *file);

/* What an architecture cannot do, each with the reason; NULL: it can. */
struct model_limits {
    const char *fp16, *tp, *pp, *freeze;
};
const struct model_limits *model_limits(int arch);
/* Refuse fp16 parameters or arithmetic, tp or pp ranks where the architecture has such a limit. */
enum status model_check_limits(struct env *env, const struct model_config *config, bool fp16,
                               int64_t tp, int64_t pp);

/* The part of a model that one rank computes. */
struct model_part {
    int tp, t;     /* rank t of the tp ranks that split the tensors of every layer */
    bool sequence; /* they also split the rows of the stream between the layers' regions */
    bool regather; /* sequence: gather the inputs of matrices again in the backward pass instead of
                      keeping them gathered: 10 instead of 8 activations on the wire, less memory */
};

/* The first key (without "model.") whose size tp ranks cannot split, with that size; NULL if they
 * can split all. */
const char *model_cannot_split(const struct model_config *config, int tp, int64_t *size);
/* Why, if it is not a matter of divisors: ", whose ..."; else "". */
const char *model_split_reason(const struct model_config *config, int tp, const char *key);
bool model_can_split(const struct model_config *config, int tp);
/* Check a micro-batch: with `sequence` the ranks must divide its rows. The error suggests a fix. */
enum status model_part_check_rows(struct env *env, const struct model_part *part, int64_t batch,
                                  int64_t tokens);

struct model;
/* Build the graph and the rotary table on the device. `config` is copied. A dry device is not
 * written to. The caller destroys *model. */
enum status model_create(struct device *device, const struct model_config *config,
                         struct model **model);
/* The same for a part. Fails if tp does not divide the sizes, and suggests a tp that does. Runs of
 * its units need a group of tp ranks in which this is rank t. */
enum status model_create_part(struct device *device, const struct model_config *config,
                              const struct model_part *part, struct model **model);
void model_destroy(struct model *model);
const struct unit_graph *model_graph(const struct model *model);
const struct model_config *model_config(const struct model *model);

/* 6 N + 12 L C T: floating-point operations of one token, forward and backward. Of SARS' N, the
 * prototypes count 4, and the maps of their chain 0. */
double model_flops_per_token(const struct model *model, int64_t tokens);

/* Rows of logits that are in memory at a time, out of R rows. */
int64_t head_chunk_rows(const struct ops *ops, int64_t rows, int64_t vocab);

#endif
