/* model_impl -- what the units of this folder share: their sizes, a block's buffers, and the
 * regions in which ranks compute parts of a layer.
 *
 * One struct for each unit type, borrowed by every unit of that type: the layers of a model differ
 * in their params only.
 */
#ifndef MODEL_MODEL_IMPL_H
#define MODEL_MODEL_IMPL_H
#include "model/model.h"

/* --- tensor parallel ------------------------------------------------------------------------ */
struct tp_group { /* of the ranks that compute each layer together */
    int size, rank;
    bool regather; /* see model_part */
};

struct region { /* of one run; regions.c has the drawing */
    const struct tp_group *tp_group;
    const struct unit_run *run;
    int64_t width; /* C */
    bool parallel; /* there is more than this rank */
    bool sequence; /* it has but a part of the stream's rows */
    void *scratch; /* region_scratch bytes */
};
/* `scratch` for its collectives; CHECKs that the run has the group. */
struct region region_of(const struct tp_group *tp_group, const struct unit_run *run, int64_t width,
                        void *scratch);
/* Bytes of scratch for at most `rows` rows at a time, of all ranks together. */
size_t region_scratch(const struct tp_group *tp_group, const struct ops *ops, bool sequence,
                      int64_t rows, int64_t width);
/* This rank's `own` rows among those of all ranks: all of `full` unless the run is sequence
 * parallel. */
void *region_own(const struct region *r, int64_t own, void *full);
/* All rows, from this rank's `own` at `rows`: gathered into `full` where the run is sequence
 * parallel (rows may be region_own of it), else `rows` itself. */
const void *region_enter(const struct region *r, int64_t own, const void *rows, void *full);
/* The same, always into `full`, which is to outlive `rows`. */
void region_keep(const struct region *r, int64_t own, const void *rows, void *full);
/* The other way: the sum over the ranks of `partial` for this rank's own rows, to `rows`: which is
 * region_own of `partial`, or, where the run is sequence parallel, any other place. */
void region_leave(const struct region *r, int64_t own, void *partial, void *rows);

/* The same two begun, to go on while the stream computes: neither what they read may be written, nor
 * what they write be read, until the call has been waited for. One of each kind at a time. */
enum region_call {
    REGION_STREAM, /* of the stream's rows or their gradient */
    REGION_AGAIN,  /* of rows that were gathered before */
};
const void *region_begin_enter(const struct region *r, enum region_call call, int64_t own,
                               const void *rows, void *full);
void region_begin_leave(const struct region *r, int64_t own, void *partial,
                        void *rows); /* REGION_STREAM */
/* What comes is done after it; nothing to do where none is under way. */
void region_await(const struct region *r, enum region_call call);

/* model_part.c: how tensors are cut, and what is refused */
struct unit_split part_of_units(const struct tp_group *tp_group, int dim, int sections,
                                int64_t units);
struct unit_split part_of_kv_heads(const struct tp_group *tp_group, int dim, int64_t heads);
struct unit_split part_of_vocab(const struct tp_group *tp_group, int64_t vocab, int rank);
struct unit_split part_repeated(const struct tp_group *tp_group, bool partial);
enum status model_part_check(struct env *env, const struct model_config *config,
                             const struct model_part *part);

/* --- embedding: uses are wte and, for learned positions, wpe -------------------------------- */
struct embedding_unit {
    struct tp_group tp_group;
    int64_t width, vocab;       /* vocab: rows of wte that are here */
    int64_t first_id, id_count; /* as in struct embedding */
    int64_t positions;          /* rows of wpe, 0 = none */
};
extern const struct unit_type embedding_unit_type;

/* --- blocks: GPT-2's and Llama's differ in params and activation, not in their buffers ------ */
struct block {
    struct tp_group tp_group;
    struct norm norm;
    int64_t heads, kv_heads, head_width; /* heads that are here, and so with all sizes but C */
    struct linear qkv;                   /* C -> (H + 2G) D */
    struct linear proj;                  /* H D -> C */
    struct linear up;                    /* C -> F, or 2F where gate and up are one */
    struct linear down;                  /* F -> C */
    bool gated; /* act is SwiGLU of gate and up; the backward pass computes it again from these */
    const float *rope; /* borrowed; (context, D/2, 2), NULL = positions are learned */
};
extern const struct unit_type gpt2_block_type;
extern const struct unit_type llama_block_type;

/* Gradients of params that the first part of a backward pass forms on its way. */
enum {
    FORMED_NORM1,
    FORMED_BIAS1,
    FORMED_NORM2,
    FORMED_BIAS2,
    FORMED_UP_BIAS,
    FORMED_QKV_BIAS,
    FORMED_OUT_BIAS, /* this and the next where the stream has all rows */
    FORMED_PROJ_BIAS,
    FORMED_COUNT
};

/* What a block sees of its buffers in one pass. Places are used twice, which saves every large
 * scratch buffer: the comments say by whom. Where backward is in two parts the first may not touch
 * what the second reads (normed, attn, act), and has scratch instead. */
struct block_buffers {
    struct region region;
    int64_t rows;         /* R = B T */
    int64_t own;          /* N of them are this rank's rows of the stream */
    void *sum1;           /* (N, C) the input stream; kept always */
    float *mean1, *rstd1; /* (N); mean is NULL for NORM_RMS */
    void *normed1;        /* (N, C); backward: its own gradient */
    void *full1;          /* (R, C): normed1 of all ranks; normed1 itself where these are all rows,
                             around it where it is kept, else a scratch place */
    void *qkv;            /* (R, (H + 2G) D), rotated; PASS_BACKWARD_INPUT: then its gradient */
    void *attn;           /* (R, H D) */
    float *lse;           /* (B, H, T) */
    void *sum2;           /* (N, C) the stream between attention and MLP */
    float *mean2, *rstd2;
    void *normed2, *full2; /* as normed1 and full1 */
    void *d_normed;        /* (R, C) PASS_BACKWARD_INPUT: of normed1 and normed2, scratch */
    void *d_attn; /* (R, H D); backward: in normed2's place; PASS_BACKWARD_INPUT: in d_normed's */
    void *
        d_wide; /* (R, max of pre and qkv) PASS_BACKWARD_INPUT: their gradients, on the way to their
                              places; scratch */
    void *d_out,
        *d_mid; /* (R, C) PASS_BACKWARD_INPUT and PASS_BACKWARD_WEIGHT: gradients of the stream after the
                            block and between its halves; where the stream has all rows, in the
                            places of sum1 (at first in room) and sum2 */
    void *formed[FORMED_COUNT]; /* PASS_BACKWARD_INPUT and PASS_BACKWARD_WEIGHT */
    void *partial;              /* (R, C) where ranks meet: what is to be summed */
    void *d_rows;               /* (R, C) sequence parallel, backward: a gathered gradient */
    void *pre;     /* (R, up.out) before the activation; PASS_BACKWARD_INPUT: then its gradient */
    void *act;     /* (R, F); forward: before that the attention branch (N, C);
                      backward: the gradient of pre (GPT-2), or first its own gradient and then
                      act computed again (Llama); then the gradient of qkv (R, (H + 2G) D) */
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
/* Gradient of qkv from that of attn (in d_attn), turned back; its place, act's or (PASS_BACKWARD_INPUT) qkv's,
 * is returned. dbias: its column sums, of all rows also where the stream is cut; NULL: none. */
void *block_attend_backward(const struct block *block, struct unit_run *run,
                            const struct block_buffers *b, void *dbias);

/* y (N, C) = x W + bias for a matrix cut by rows, x (R, in): the sum of what the ranks have of it.
 * Rank 0 adds the bias (NULL: none) to its share. */
void block_row_linear(struct unit_run *run, const struct block_buffers *b, struct linear l,
                      const void *x, const void *w, const void *bias, void *y);
/* normed1 and, after it, normed2 have been made again: begin to gather what is kept gathered. */
void block_gather_normed1(const struct block_buffers *b);
void block_gather_normed2(const struct block_buffers *b);
void block_await_normed(const struct block_buffers *b);
/* After that, normed2 of all rows; where it is not kept gathered, it is now. */
const void *block_all_normed2(const struct block_buffers *b);

/* A matrix cut by columns and what its backward pass needs. */
struct column {
    struct linear l;
    void *normed;   /* (N, C) its input, */
    void *full;     /* (R, C) of all ranks */
    const void *dy; /* (R, out) gradient of its output */
    const void *w;
    void *dw, *dbias; /* gradients to be written; dbias NULL: none */
};
/* Begin to gather the input where it was not kept (regather): `full` is free, the weight's gradient
 * will wait for it. */
void block_gather_again(const struct block_buffers *b, const struct column *c);
/* Backward: the gradient of this rank's rows of the input, returned; its sum over the ranks is under
 * way (REGION_STREAM) until the caller waits for it. In the meantime come block_column_rest, the
 * weight's gradient, and whatever else does not need it. */
void *block_column_backward(struct unit_run *run, const struct block_buffers *b,
                            const struct column *c);
void block_column_rest(struct unit_run *run, const struct block_buffers *b, const struct column *c);
/* The two parts of it, one after the other. The first leaves `normed` as it is and writes to d_normed,
 * or where ranks meet. */
void *block_column_input(struct unit_run *run, const struct block_buffers *b, struct linear l,
                         const void *dy, const void *w, void *d_normed);
void block_column_weight(struct unit_run *run, const struct block_buffers *b,
                         const struct column *c);
/* PASS_BACKWARD_INPUT, at last: sum1 is spent, and d_out comes to its place. */
void block_end_input(struct unit_run *run, const struct block_buffers *b);
/* PASS_BACKWARD_WEIGHT: what PASS_BACKWARD_INPUT has formed to the gradients of uses (FORMED_COUNT), -1: not there. */
void block_hand_over(const struct block *block, struct unit_run *run, const struct block_buffers *b,
                     const int *uses);

/* --- head: uses are the norm's weight, its bias where it has one, and the matrix (V, C) ----- */
struct head_unit {
    struct tp_group tp_group;
    struct norm norm;
    bool norm_bias;
    struct linear linear; /* C -> V, [out][in]; V columns of the logits that are here */
    int64_t vocab;        /* columns on all ranks */
    int64_t first_id;     /* the token of the first one here */
    int64_t most;         /* the most columns that a rank has */
};
extern const struct unit_type head_unit_type;

/* Rows of logits that exist at once, for R rows in all. */
int64_t head_chunk_rows(const struct ops *ops, int64_t rows, int64_t vocab);

/* --- rotary table --------------------------------------------------------------------------- */
/* table (context, D/2, 2): cos and sin of position * frequency, formed in double. */
void rope_table_fill(const struct model_config *config, float *table);

#endif
