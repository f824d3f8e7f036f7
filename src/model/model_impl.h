/* model_impl -- what the units of this folder share: their sizes and a block's buffers.
 *
 * One struct for each unit type, borrowed by every unit of that type: the layers of a model differ
 * in their params only.
 */
#ifndef MODEL_MODEL_IMPL_H
#define MODEL_MODEL_IMPL_H
#include "model/model.h"

/* --- embedding: uses are wte and, for learned positions, wpe -------------------------------- */
struct embedding_unit {
    int64_t width, vocab;
    int64_t positions; /* rows of wpe, 0 = none */
};
extern const struct unit_type embedding_unit_type;

/* --- blocks: GPT-2's and Llama's differ in params and activation, not in their buffers ------ */
struct block {
    struct norm norm;
    int64_t heads, kv_heads, head_width;
    struct linear qkv;  /* C -> (H + 2G) D */
    struct linear proj; /* H D -> C */
    struct linear up;   /* C -> F, or 2F where gate and up are one */
    struct linear down; /* F -> C */
    bool remakes_act;   /* the backward pass forms act again: it is not kept */
    const float *rope;  /* borrowed; (context, D/2, 2), NULL = positions are learned */
};
extern const struct unit_type gpt2_block_type;
extern const struct unit_type llama_block_type;

/* What a block sees of its buffers in one pass. Places are used twice, which saves every large
 * scratch buffer: the comments say by whom. */
struct block_buffers {
    int64_t rows;         /* R = B T */
    void *sum1;           /* (R, C) the input stream; kept always */
    float *mean1, *rstd1; /* (R); mean is NULL for NORM_RMS */
    void *normed1;        /* (R, C); backward: its own gradient */
    void *qkv;            /* (R, (H + 2G) D), rotated */
    void *attn;           /* (R, H D) */
    float *lse;           /* (B, H, T) */
    void *sum2;           /* (R, C) the stream between attention and MLP */
    float *mean2, *rstd2;
    void *normed2; /* (R, C); backward: its own gradient, then that of attn (R, H D) */
    void *pre;     /* (R, up.out) before the activation */
    void *act;     /* (R, F); forward: before that the attention branch (R, C);
                      backward: the gradient of pre (GPT-2), or its own and then itself again
                      (Llama); then the gradient of qkv (R, (H + 2G) D) */
    void *scratch; /* of attention and of the norms' backward, which never run at once */
};
struct block_buffers block_buffers_of(const struct block *block, const struct unit_run *run);

/* The slots `buffers` and `cache_bytes` of both block types. */
int64_t block_work(const struct unit *unit, struct unit_shape shape);
int block_list_buffers(const struct unit *unit, const struct ops *ops, struct unit_shape shape,
                       struct unit_buffer *list);
size_t block_cache_bytes(const struct unit *unit, const struct ops *ops, int64_t batch,
                         int64_t tokens);

/* attn from qkv, which is rotated first where there is a rope table; the second through the
 * decoding cache of the run. */
void block_attend(const struct block *block, struct unit_run *run, const struct block_buffers *b);
void block_attend_cached(const struct block *block, struct unit_run *run,
                         const struct block_buffers *b);
/* Gradient of qkv (in act's place) from that of attn (in normed2's place), turned back. */
void block_attend_backward(const struct block *block, struct unit_run *run,
                           const struct block_buffers *b);

/* --- head: uses are the norm's weight, its bias where it has one, and the matrix (V, C) ----- */
struct head_unit {
    struct norm norm;
    bool norm_bias;
    struct linear linear; /* C -> V, [out][in] */
};
extern const struct unit_type head_unit_type;

/* Rows of logits that exist at once, for R rows in all. */
int64_t head_chunk_rows(const struct ops *ops, int64_t rows, int64_t vocab);

/* --- rotary table --------------------------------------------------------------------------- */
/* table (context, D/2, 2): cos and sin of position * frequency, formed in double. */
void rope_table_fill(const struct model_config *config, float *table);

#endif
