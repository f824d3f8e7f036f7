/* model_impl -- what the units of this folder share: their sizes, a block's buffers, and the
 * regions in which ranks compute parts of a layer.
 *
 * There is one struct for each unit type, and all units of that type borrow it, since layers differ
 * only in their params. Blocks have a struct for each variant of a layer.
 */
#ifndef MODEL_MODEL_IMPL_H
#define MODEL_MODEL_IMPL_H
#include "model/model.h"

/* --- presets: named sets of sizes. Keys that the user sets override them -------------------- */
struct model_preset {
    const char *name;
    int arch; /* enum model_arch */
    int64_t layers, width, heads, kv_heads, ff, context;
    int64_t vocab; /* 0: from the tokenizer */
    int tied;
    double rope_theta;
};
extern const struct model_preset model_presets[]; /* [0] is "none": all sizes 0 */
extern const int model_preset_count;
extern const char *const model_preset_names[]; /* the same order; NULL-terminated */

/* --- tensor parallel ------------------------------------------------------------------------ */
struct tp_group { /* the ranks that compute each layer together */
    int size, rank;
    bool regather; /* see model_part */
};

/* A meeting point of the ranks of a TP group, for one run; regions.c has the drawing. */
struct region {
    const struct tp_group *tp_group;
    const struct unit_run *run;
    int64_t width; /* C */
    bool parallel; /* the group has more than one rank */
    bool sequence; /* sequence parallel: this rank holds only a part of the stream's rows */
    void *scratch; /* region_scratch bytes */
};
/* `scratch` is for the collectives. CHECKs that the run has the group. */
struct region region_of(const struct tp_group *tp_group, const struct unit_run *run, int64_t width,
                        void *scratch);
/* Bytes of scratch for calls of up to `rows` rows, counted over all ranks. */
size_t region_scratch(const struct tp_group *tp_group, const struct ops *ops, bool sequence,
                      int64_t rows, int64_t width);
/* This rank's `own` rows inside `full`, which has the rows of all ranks: a part of `full` in a
 * sequence-parallel run, otherwise `full` itself. */
void *region_own(const struct region *r, int64_t own, void *full);
/* The rows of all ranks, given this rank's `own` rows. In a sequence-parallel run they are gathered
 * into `full` (rows may be region_own of it), which is returned; otherwise `rows` is returned. */
const void *region_enter(const struct region *r, int64_t own, const void *rows, void *full);
/* The same, but always into `full`, for rows that must outlive `rows`. */
void region_keep(const struct region *r, int64_t own, const void *rows, void *full);
/* The opposite: sum `partial` over the ranks and write this rank's rows of the sum to `rows`, which
 * is region_own of `partial` or, in a sequence-parallel run, any other buffer. */
void region_leave(const struct region *r, int64_t own, void *partial, void *rows);
/* Sums over the ranks of numbers that each rank has a part of; in place. */
size_t region_numbers_scratch(const struct tp_group *tp_group, int64_t count);
void region_add_numbers(const struct region *r, int64_t count, double *numbers);

/* Asynchronous forms, which overlap with compute on the side stream. Until region_await, do not
 * write what the call reads and do not read what it writes. One call of each kind at a time. */
enum region_call {
    REGION_STREAM, /* on the stream's rows or their gradient */
    REGION_AGAIN,  /* on rows that were gathered before */
};
const void *region_begin_enter(const struct region *r, enum region_call call, int64_t own,
                               const void *rows, void *full);
/* A REGION_STREAM call. */
void region_begin_leave(const struct region *r, int64_t own, void *partial, void *rows);
/* Later work on the run's stream waits for the call. Does nothing if none was begun. */
void region_await(const struct region *r, enum region_call call);

/* model_part.c: how tensors are split, and which splits are refused */
struct unit_split part_of_units(const struct tp_group *tp_group, int dim, int sections,
                                int64_t units);
struct unit_split part_of_qkv(const struct tp_group *tp_group, int64_t heads, int64_t kv_heads);
struct unit_split part_of_kv_heads(const struct tp_group *tp_group, int dim, int64_t heads);
struct unit_split part_of_vocab(const struct tp_group *tp_group, int64_t vocab, int rank);
struct unit_split part_repeated(const struct tp_group *tp_group, bool partial);
enum status model_part_check(struct env *env, const struct model_config *config,
                             const struct model_part *part);

/* --- embedding: uses are wte and, for learned positions, wpe -------------------------------- */
struct embedding_unit {
    struct tp_group tp_group;
    int64_t width, vocab;       /* vocab: this rank's rows of wte */
    int64_t first_id, id_count; /* as in struct embedding */
    int64_t positions;          /* rows of wpe, 0 = none */
    double scale; /* rows of wte are multiplied by it, rounded to the compute type; 0: they are not
                   */
};
extern const struct unit_type embedding_unit_type;

/* --- blocks: flags and sizes say what a layer is -------------------------------------------- */
enum block_use {
    BLOCK_NORM1,
    BLOCK_NORM1_BIAS,
    BLOCK_QKV,
    BLOCK_QKV_BIAS,
    BLOCK_Q_NORM,
    BLOCK_K_NORM,
    BLOCK_PROJ,
    BLOCK_PROJ_BIAS,
    BLOCK_POST1, /* a norm of the output of attention */
    BLOCK_NORM2,
    BLOCK_NORM2_BIAS,
    BLOCK_UP, /* where the MLP is gated, gate and up */
    BLOCK_UP_BIAS,
    BLOCK_DOWN,
    BLOCK_DOWN_BIAS,
    BLOCK_POST2, /* a norm of the output of the MLP */
    BLOCK_USES
};

struct block {
    struct tp_group tp_group;
    struct norm norm;
    int64_t heads, kv_heads, head_width; /* this rank's heads; all sizes but C are this rank's */
    int64_t window;                      /* this and the next two as in struct attention */
    double scale, cap;
    struct head_rms head_rms; /* without rows; where the layer has BLOCK_Q_NORM and BLOCK_K_NORM */
    struct linear qkv;        /* C -> (H + 2G) D */
    struct linear proj;       /* H D -> C */
    struct linear up;         /* C -> F, or 2F where gate and up are one */
    struct linear down;       /* F -> C */
    bool geglu;               /* gated: by GELU, not by SiLU */
    bool exact; /* not gated: GELU is exact, and not fused with the products beside it */
    bool gated; /* act is SwiGLU of gate and up; the backward pass computes it again from these */
    struct rope rope;     /* without a table where q and k are not rotated */
    int uses[BLOCK_USES]; /* the index of each among the unit's uses; -1: the layer has none */
};
/* The type of the units that borrow a block, once its fields are set. */
struct unit_type transformer_block_type(const struct block *block);

/* Small gradients that PASS_BACKWARD_INPUT forms as by-products. */
enum {
    FORMED_NORM1,
    FORMED_BIAS1,
    FORMED_NORM2,
    FORMED_BIAS2,
    FORMED_UP_BIAS,
    FORMED_QKV_BIAS,
    FORMED_Q_NORM,
    FORMED_K_NORM,
    FORMED_POST1,
    FORMED_POST2,
    FORMED_DOWN_BIAS, /* this and the next only where the stream has all rows */
    FORMED_PROJ_BIAS,
    FORMED_COUNT
};

/* One of a block's norms. Where the layer has none before attention and MLP, the output is a copy
 * of the input. */
struct block_norm {
    void *sum;          /* (N, C) its input, the stream or a branch; kept */
    float *mean, *rstd; /* (N); mean is NULL for NORM_RMS */
    void *normed;       /* (N, C) its output; backward overwrites it with its gradient */
    void *full;         /* (R, C) the output on all ranks: `normed` itself where that has all rows;
                           a larger buffer that contains `normed` where it is kept; else scratch */
};

/* What a block sees of its buffers in one pass. Buffers are reused within a pass, which saves every
 * large scratch buffer; the comments name the users. PASS_BACKWARD_INPUT must not overwrite what
 * PASS_BACKWARD_WEIGHT reads (normed, attn, act), and has scratch instead. */
struct block_buffers {
    struct region region;
    int64_t rows;            /* R = B T */
    int64_t own;             /* N: this rank's rows of the stream */
    struct block_norm norm1; /* before attention; its sum is always kept */
    void *qkv;               /* (R, (H + 2G) D), rotated; PASS_BACKWARD_INPUT: then its gradient */
    void *heads;             /* (R, (H + G) D) q and k before their norms, where they have norms */
    double *squares;         /* (R, S) of these, as in ops_head_sums */
    void *attn;              /* (R, H D) */
    float *lse;              /* (B, H, T) */
    struct block_norm norm2; /* between attention and MLP */
    struct block_norm post1; /* of the output of attention, where the layer has such norms; its
                                output is the branch that is added to the stream */
    struct block_norm post2; /* the same of the MLP */
    void *d_branch;          /* (N, C) scratch: the gradient of the input of post1 or post2 */
    void *d_normed;          /* (R, C) PASS_BACKWARD_INPUT, scratch: gradients of both normed */
    void *d_attn;            /* (R, H D) backward: in norm2.normed; PASS_BACKWARD_INPUT: in
                                 d_normed */
    void *d_wide;            /* (R, max of pre and qkv) PASS_BACKWARD_INPUT, scratch: their
                                 gradients before they overwrite pre and qkv */
    void *d_out, *d_mid;     /* (R, C) PASS_BACKWARD_INPUT and PASS_BACKWARD_WEIGHT: gradients of
                                 the stream after the block and between its halves; where the stream
                                 has all rows, in norm1.sum (at first in room) and norm2.sum */
    void *formed[FORMED_COUNT]; /* PASS_BACKWARD_INPUT and PASS_BACKWARD_WEIGHT; NULL: not wanted */
    void *partial;              /* (R, C) tensor parallel: rows to be summed over the ranks */
    void *d_rows;               /* (R, C) sequence parallel, backward: a gathered gradient */
    void *pre;     /* (R, up.out) before the activation; PASS_BACKWARD_INPUT: then its gradient */
    void *act;     /* (R, F); forward: before that the attention branch (N, C);
                      backward: the gradient of pre (GELU), or first its own gradient and then
                      act computed again (gated); then the gradient of qkv (R, (H + 2G) D) */
    double *dots;  /* (R, S) where q and k have norms, at the start of scratch */
    void *scratch; /* of attention and of the norms' backward, which never run at once */
};
struct block_buffers block_buffers_of(const struct block *block, const struct unit_run *run);

/* The slots `work`, `buffers` and `cache_bytes` of a block's type. */
int64_t block_work(const struct unit *unit, struct unit_shape shape);
int block_list_buffers(const struct unit *unit, const struct ops *ops, struct unit_shape shape,
                       struct unit_buffer *list);
size_t block_cache_bytes(const struct unit *unit, const struct ops *ops, int64_t batch,
                         int64_t tokens);

struct attention block_attention(const struct block *block, struct unit_shape shape);
/* Bytes of the keys and values at the start of a cache. */
size_t block_cache_size(const struct block *block, const struct ops *ops, int64_t batch,
                        int64_t tokens);

/* n->sum = residual + branch (branch NULL: residual); n->normed = norm(n->sum). */
void block_add_norm(const struct block *block, struct unit_run *run, const struct block_buffers *b,
                    const struct block_norm *n, const void *residual, const void *branch,
                    const void *weight, const void *bias);
/* Whether the outputs of attention and MLP have norms. */
bool block_has_posts(const struct block *block);
/* A row linear (below) and, where the layer has it, the norm of its output. `out` gets the branch
 * that is to be added to the stream. */
struct branch {
    struct linear l;
    const void *x, *w, *bias;
    const struct block_norm *post;
    const void *post_weight;
    void *out; /* (N, C) */
};
void block_branch(const struct block *block, struct unit_run *run, const struct block_buffers *b,
                  const struct branch *a);
/* The gradient (N, C) of the row linear's output, from that of the branch in run->gradient, and the
 * gradient of the norm's weight. */
const void *block_branch_backward(const struct block *block, struct unit_run *run,
                                  const struct block_buffers *b, const struct block_norm *post,
                                  const void *weight, void *dweight);
/* Recompute n->normed from the saved sum and statistics. */
void block_norm_again(const struct block *block, struct unit_run *run,
                      const struct block_buffers *b, const struct block_norm *n, const void *weight,
                      const void *bias);
/* Add the gradient through the norm to run->gradient. The caller sets dy, weight and the gradients
 * to be written in `a`; the rest is filled in here. */
void block_norm_backward(const struct block *block, struct unit_run *run,
                         const struct block_buffers *b, const struct block_norm *n,
                         struct norm_backward a);

/* attn from qkv, which is rotated first if there is a rope table. PASS_DECODE uses the run's
 * cache. */
void block_attend(const struct block *block, struct unit_run *run, const struct block_buffers *b);
/* The norms of q and k in qkv; where the layer has none, does nothing. */
void block_norm_heads(const struct block *block, struct unit_run *run,
                      const struct block_buffers *b, const void *q, const void *k);
struct attend_backward {
    void *dbias;       /* or NULL: gets the column sums of the gradient over all R rows, in
                          sequence-parallel runs too; not where q and k have norms */
    const void *q, *k; /* weights of these norms */
    void *dq, *dk;     /* their gradients, or NULL */
};
/* Gradient of qkv before its norms and its rotation, from that of attn in d_attn. Returns the
 * buffer that holds it: `act`, or `qkv` in PASS_BACKWARD_INPUT. */
void *block_attend_backward(const struct block *block, struct unit_run *run,
                            const struct block_buffers *b, const struct attend_backward *a);

/* y (N, C) = x W + bias for a matrix that is split by rows, x (R, in): the sum of the ranks'
 * partial products. Rank 0 adds the bias (NULL: none) to its partial product. */
void block_row_linear(struct unit_run *run, const struct block_buffers *b, struct linear l,
                      const void *x, const void *w, const void *bias, void *y);
/* PASS_REBUILD: once the output of a norm (1, then 2) has been recomputed, begin to gather it where
 * the gathered form is kept. */
void block_gather_normed(const struct block_buffers *b, const struct block_norm *n);
void block_await_normed(const struct block_buffers *b);
/* After block_await_normed: norm2.normed of all rows, gathered now if the gathered form is not
 * kept. */
const void *block_all_normed2(const struct block_buffers *b);

/* A matrix that is split by columns, with what its backward pass needs. */
struct column {
    struct linear l;
    const struct block_norm *input; /* its input is input->normed (N, C), on all ranks ->full */
    const void *dy;                 /* (R, out) gradient of its output */
    const void *w;
    int use;     /* of the matrix */
    void *dbias; /* where the gradient of the bias goes; NULL: it is not wanted here */
};
/* The gradients of the matrix of a use, unless it is frozen, and of its bias (NULL: not wanted),
 * from x (R, in) and dy (R, out). */
void block_weight(struct unit_run *run, const struct block_buffers *b, struct linear l, int use,
                  const void *x, const void *dy, void *dbias);
/* If the gathered input was not kept (regather), begin to gather it again. `full` must be free; the
 * weight's gradient will wait for it. */
void block_gather_again(const struct block_buffers *b, const struct column *c);
/* Backward: returns the gradient of this rank's rows of the input. Its sum over the ranks is in
 * progress (REGION_STREAM) until the caller awaits it. Meanwhile the caller runs block_column_rest,
 * which forms the weight's gradient, and other work that does not need the sum. */
void *block_column_backward(struct unit_run *run, const struct block_buffers *b,
                            const struct column *c);
void block_column_rest(struct unit_run *run, const struct block_buffers *b, const struct column *c);
/* The same as two separate passes. The first does not change the input; it writes to d_normed, or
 * to `partial` if the ranks must sum. */
void *block_column_input(struct unit_run *run, const struct block_buffers *b, struct linear l,
                         const void *dy, const void *w, void *d_normed);
void block_column_weight(struct unit_run *run, const struct block_buffers *b,
                         const struct column *c);

/* The last step of PASS_BACKWARD_INPUT: norm1.sum is no longer needed, so d_out moves there. */
void block_end_input(struct unit_run *run, const struct block_buffers *b);
/* Both halves: keep those of b->formed that become gradients; the others, and those of frozen uses,
 * become NULL. */
void block_choose_formed(const struct unit *unit, struct block_buffers *b);
/* PASS_BACKWARD_WEIGHT: copy the by-products of PASS_BACKWARD_INPUT to the gradients. */
void block_hand_over(const struct block *block, struct unit_run *run,
                     const struct block_buffers *b);

/* --- SARS blocks: sars_block.c lists the params -------------------------------------------- */
struct sars_block {
    struct block block; /* for attention and norm */
    int64_t width, layers;
    struct sars_config sars;
};
extern const struct unit_type sars_first_block_type; /* of layer 0 */
extern const struct unit_type sars_block_type;

/* --- head: uses are the norm's weight, its bias where it has one, and the matrix (V, C) ----- */
struct head_unit {
    struct tp_group tp_group;
    struct norm norm;
    bool norm_bias;
    bool plain;           /* no norm: the only use is the matrix; not with tensor parallelism */
    struct linear linear; /* C -> V, [out][in]; V: this rank's columns of the logits */
    int64_t vocab;        /* columns on all ranks */
    int64_t first_id;     /* the token of this rank's first column */
    int64_t most;         /* the largest number of columns on any rank */
    double logit_cap;     /* of the logits; 0: none */
};
struct unit_type head_unit_type(const struct head_unit *head);

/* Which variant of the block a layer is: bits. */
enum { BLOCK_NOPE = 1, BLOCK_WINDOW = 2, BLOCK_VARIANTS = 4 };
int model_block_variant(const struct model_config *config, int64_t layer);

/* --- configuration: model_keys.c has the keys, model_check.c the checks --------------------- */

/* Larger sizes are typing errors. model_check_open limits their products. */
#define MODEL_MAX_LAYERS  65536
#define MODEL_MAX_WIDTH   (1 << 20)
#define MODEL_MAX_CONTEXT (1 << 24)
#define MODEL_MAX_VOCAB   (1 << 24)

enum { MODEL_TIED_NO, MODEL_TIED_YES, MODEL_TIED_AUTO }; /* values of model_config.tied */

/* Refuse a size below 1 or above `most`. */
enum status model_check_size(struct env *env, const char *key, int64_t value, int64_t most);
/* `part` must divide `whole` into parts that are a multiple of `unit`. The error suggests the
 * nearest values that do. */
enum status model_check_divides(struct env *env, const char *part_key, int64_t part,
                                const char *whole_key, int64_t whole, int64_t unit);
/* Refuse a key of layers that the architecture does not have. */
enum status model_check_traits(struct env *env, const struct model_config *config);
/* model_check for a configuration in which the vocabulary and `tied` may still be open. */
enum status model_check_open(struct env *env, const struct model_config *config);

#endif
