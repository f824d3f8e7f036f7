/* hf_config -- reads and writes the config.json of a Hugging Face model directory, for GPT-2, for
 * Llama and its relatives, and for SARS in the same form, which only sifr reads.
 *
 * Both generations of keys are read (`rope_theta` and `rope_scaling` of transformers 4,
 * `rope_parameters` of transformers 5; `torch_dtype` and `dtype`). Both are written, because a
 * reader of the other generation would silently use its defaults. Unsupported features are errors
 * that name the key: other architectures, activations or rope types, mixtures of experts, images,
 * and keys by which relatives of a supported model compute something else.
 */
#ifndef TRAIN_HF_CONFIG_H
#define TRAIN_HF_CONFIG_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/dtype.h"
#include "base/env.h"
#include "base/text.h"
#include "model/model.h"
#include "model/rope.h"

enum { HF_EOS = 16 };
enum hf_rope {
    HF_ROPE_PLAIN = ROPE_PLAIN,
    HF_ROPE_LINEAR = ROPE_LINEAR,
    HF_ROPE_LLAMA3 = ROPE_LLAMA3,
    HF_ROPE_YARN = ROPE_YARN,
    HF_ROPE_DYNAMIC = ROPE_DYNAMIC,
    HF_ROPE_LONGROPE = ROPE_LONGROPE
};

struct hf_config {
    enum model_arch arch;
    int64_t layers, heads, kv_heads, head_dim, width, ff, context, vocab; /* SARS: ff 0 */
    double eps;
    double init_std; /* initializer_range */
    bool tied;
    bool exact_gelu; /* GPT-2 */
    bool attention_bias, mlp_bias;
    int64_t window, window_from, full_every, nope_every; /* as in struct model_config */
    int64_t query_scalar;                                /* the same */
    double score_cap, logit_cap;                         /* the same */
    bool rotary;                                         /* SARS: positions are rotated */
    double rope_theta; /* Llama and SARS; the other rope fields: Llama only */
    enum hf_rope rope;
    double rope_factor;         /* where the frequencies are scaled */
    double rope_low, rope_high; /* llama3: low_freq_factor, high_freq_factor */
    int64_t rope_original;      /* original_max_position_embeddings */
    struct rope_extras rope_extras;
    int64_t bos, pad;    /* -1 = none */
    int64_t eos[HF_EOS]; /* several may end a text */
    int eos_count;
    enum dtype type; /* of the weights: f32, bf16 or f16 */
};

/* Parse the text of a config.json; `origin` is the file name in messages. Missing keys have the
 * defaults of transformers. */
enum status hf_config_parse(struct env *env, const char *json, size_t bytes, const char *origin,
                            struct hf_config *config);
enum status hf_config_read(struct env *env, const char *path, struct hf_config *config);

/* Append the text of a config.json, from which hf_config_parse reads the same values. */
void hf_config_print(const struct hf_config *config, struct text *text);

#endif
