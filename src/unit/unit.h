/* unit -- the contract between model, store and engine.
 *
 * A model is an ordered list of units (the embedding, the blocks, the head) over tables of tensors,
 * params and pieces:
 *
 *     tensor   what files, users and optimizer groups see: a name, a shape, initial values
 *     param    one or more tensors fused along their first dimension (q, k, v; gate, up)
 *     piece    one or more params that are gathered, released and reduced as one flat range
 *     unit     computes with params; a tied param is used by two units and is a piece of its own;
 *              units may also use different params of one piece (unit_merge.h)
 *
 * A unit type is a table of passes: forward, backward and so on. Each pass declares which of the
 * unit's params it reads and which gradients it writes. The unit declares the buffers it needs and
 * how long each must live. A pass only enqueues work on a stream: it allocates nothing and never
 * waits. It does not know who shards the params, where the buffers are, or when it will run.
 *
 * The residual stream passes from unit to unit as two tensors: `residual`, and `pending`, the
 * output of the last branch, which has not been added yet. So the addition fuses with the next norm
 * across the boundary of units. Both have the same gradient, so backward carries one tensor.
 *
 * A unit may also hand a *carry* to the next unit: an array that does not depend on the tokens,
 * such as matrices that each layer derives from those of the layer below. The gradient of the carry
 * comes back in the backward walk.
 *
 * A unit may also offer its backward pass in two parts. Pipelines use them: another stage waits for
 * the gradient of the unit's input, but nobody waits for the gradients of its params.
 *
 *     PASS_BACKWARD_INPUT    reads params and writes no gradients of params; what the second part
 *                            needs stays in buffers that both parts declare
 *     PASS_BACKWARD_WEIGHT   reads no params and writes all gradients that PASS_BACKWARD writes,
 *                            with the same bits
 *
 * The engine runs either both parts or PASS_BACKWARD. If a unit has no parts, PASS_BACKWARD runs in
 * place of the first part.
 *
 * With tensor parallelism several ranks compute every unit together. Each rank has the same units
 * over its own part of every tensor, and a pass may call collectives of the TP group, either on the
 * compute stream, which then waits for them, or on a side stream, where they overlap with compute.
 * Name, shape and initial values always describe the whole tensor; `split` says which part of it
 * this rank has.
 */
#ifndef UNIT_UNIT_H
#define UNIT_UNIT_H
#include "ops/ops.h"

struct comm;

enum { UNIT_NAME = 96, UNIT_MAX_USES = 16, UNIT_MAX_BUFFERS = 32, UNIT_MAX_INPUTS = 8 };

/* --- tensors, params, pieces ---------------------------------------------------------------- */
enum unit_init {
    INIT_ZERO,
    INIT_ONE,
    INIT_NORMAL /* standard deviation init_scale */,
    INIT_UNIFORM /* in +- init_scale */
};

/* A model may have two losses, each with tensors of its own, in one backward walk. The gradients of
 * each have a norm of their own, by which they are clipped. */
enum unit_phase {
    PHASE_MAIN, /* the loss */
    PHASE_META, /* a second loss, which the units form themselves */
    PHASE_COUNT
};

/* Which part of a tensor this rank has. All zero: the whole tensor, and no replica of it.
 *
 * Along `dim` the tensor consists of `sections` sections (3 if one matrix holds q, k and v) of
 * `units` units each. A unit (a head, or an element) is never cut. The rank has the units first ..
 * first + count - 1 of every section, stored densely in this order:
 *
 *     whole tensor   | q0 q1 q2 q3 | k0 k1 k2 k3 | v0 v1 v2 v3 |      sections 3, units 4
 *     this rank      | q2 q3 k2 k3 v2 v3 |                            first 2, count 2
 *
 * The first section may be `lead` times as large as the others, as q is if several of its heads share
 * those of k and v. Then a unit of it is so many times as large, `dim` is 0, and no part is padded or
 * replicated.
 *
 * A rank with fewer units than another leaves padding behind them, so that whatever follows in the
 * piece has the same offset on all ranks.
 *
 * `replicas` adjacent ranks have the same part; this rank is number `replica` of them. Each of them
 * computes the whole gradient of the part, with the same bits. If the split is `partial`, each
 * computes only a summand: the store adds them in the order of the replicas before anybody uses the
 * gradient. */
struct unit_split {
    int dim;
    int64_t sections, units, first, count; /* units 0: the tensor is not cut */
    int64_t lead;          /* size of the first section, in sizes of the others; 0 means 1 */
    int64_t most;          /* the largest count of any rank; 0: all ranks have `count` */
    int replicas, replica; /* replicas 0 means 1 */
    bool partial;
};

struct unit_tensor {
    char name[UNIT_NAME]; /* as in files: "model.layers.3.self_attn.q_proj.weight" */
    int dims;
    int64_t shape[4]; /* of the whole tensor */
    struct unit_split split;
    enum unit_init init;
    double init_scale;
    bool decay;   /* weight decay applies; false for norms and biases */
    int matrices; /* hidden layers: columns are divided into this many matrices (3 for GPT-2's
                     c_attn); 0: embedding, head, vector */
    enum unit_phase phase; /* the same for all tensors of a param */
    /* What happens to the summed gradient of the step, before its norm is computed: */
    bool gated; /* row r becomes 0 unless the model's statistic [gate + r] is above 0 */
    int64_t gate;
    double limit; /* elements are clamped to -limit .. limit; 0: they are not */
};

struct unit_param {
    int first_tensor, tensor_count;
    int piece;
};

struct unit_piece {
    char name[UNIT_NAME];
    int first_param, param_count; /* the params of a piece are consecutive */
};

/* --- passes --------------------------------------------------------------------------------- */
enum pass {
    PASS_FORWARD,         /* stream in, stream out; keeps what backward needs */
    PASS_REBUILD,         /* recompute the buffers that were not kept from those that were */
    PASS_BACKWARD,        /* gradient of the output stream in, gradient of the input stream out;
                             writes the params' gradients */
    PASS_BACKWARD_INPUT,  /* optional: the first part of backward */
    PASS_BACKWARD_WEIGHT, /* optional: the second part, any time after PASS_BACKWARD_INPUT */
    PASS_LOSS,            /* last unit: losses, gradients of its params and of its input stream */
    PASS_EVAL,            /* last unit: losses only */
    PASS_LOGITS,          /* last unit: logits of the last positions */
    PASS_DECODE,          /* forward with a cache of keys and values */
    PASS_COUNT
};

const char *pass_word(enum pass pass); /* "backward" */

/* A walk visits consecutive units forward, backward, or forward and then backward. */
enum walk_way { WALK_FORWARD, WALK_BACKWARD, WALK_BOTH };

/* How long a buffer lives. Selective recomputation rebuilds what is cheap to compute, full
 * recomputation everything except the input sum. */
enum keep {
    KEEP_ALWAYS,           /* from forward to backward in every mode */
    KEEP_UNLESS_FULL,      /* rebuilt under full recomputation */
    KEEP_UNLESS_SELECTIVE, /* rebuilt under selective and full recomputation */
    KEEP_NOT,              /* inside one pass only */
};

#define UNIT_PARTS (1u << PASS_BACKWARD_INPUT | 1u << PASS_BACKWARD_WEIGHT)

struct unit_buffer {
    const char *name;
    size_t bytes;
    enum keep keep;
    /* KEEP_NOT: bit p = pass p uses the buffer, so that passes can share memory. For any `keep`:
     * with UNIT_PARTS set, and where backward is split in two, the buffer lives from
     * PASS_BACKWARD_INPUT (from PASS_REBUILD before it, if it is rebuilt) to PASS_BACKWARD_WEIGHT.
     */
    uint32_t passes;
};

struct unit_shape {
    int64_t batch, tokens; /* B sequences of T tokens */
    int sequence;          /* sequence parallelism: this many ranks have an equal part each of the
                              stream's R = B T rows, in rank order; 0: every rank has all rows */
};
int64_t unit_stream_rows(struct unit_shape shape); /* of this rank; CHECKs that the rows divide */

struct unit;

/* --- collectives that overlap with compute -------------------------------------------------- */
enum { UNIT_CALLS = 2 }; /* that may be in flight at once */

/* A pass that has begun a call here waits for it before it returns. Until then it must not call
 * collectives on its own stream: only one stream at a time may use a communicator. */
struct unit_side_stream {
    struct stream *stream;
    struct event *written;          /* compute has written the input of a call */
    struct event *done[UNIT_CALLS]; /* the call has finished */
    uint32_t open;                  /* bit c: call c has begun and has not been waited for */
    double waited;                  /* seconds that compute has waited for such calls */
};
/* For calls over `group`. The caller destroys *side_stream, before the group. */
enum status unit_side_stream_create(struct device *device, struct comm *group,
                                    struct unit_side_stream **side_stream);
void unit_side_stream_destroy(struct device *device,
                              struct unit_side_stream *side_stream); /* NULL is fine */

/* --- one pass over one micro-batch ---------------------------------------------------------- */
/* Sums of the step's gradients. A pass may add the gradient of a matrix to its sum with
 * ops_linear_dw_sum, instead of writing grads[u], which is scratch then. */
struct unit_sums {
    float *at[UNIT_MAX_USES]; /* NULL: the pass must write grads[u] */
    enum dtype type;          /* to which a gradient is rounded first */
    bool add;                 /* false: what is there is overwritten */
    bool several;             /* the step has more than one micro-batch, over all workers */
    uint32_t added;           /* set by the pass: bit u: grads[u] is in the sum */
};

/* Filled in by the engine. Pointers are device memory unless stated otherwise. */
struct unit_run {
    struct ops *ops;
    struct stream *stream;
    struct comm *group;                   /* borrowed: the TP group; NULL: one rank */
    struct unit_side_stream *side_stream; /* borrowed; NULL: all calls are on `stream` */
    enum pass pass;
    struct unit_shape shape;
    const void *const *inputs; /* the graph's inputs: (B, bytes) each */
    const int32_t *tokens;     /* of a language model: its inputs, (B, T); labels -1 = masked */
    const int32_t *labels;
    const struct step_scalars *scalars;

    const void *params[UNIT_MAX_USES]; /* of the uses that this pass reads, in the compute type */
    bool bf16;                         /* but those that it takes in bf16 (struct unit_type) are */
    void *grads[UNIT_MAX_USES];        /* of the uses that this pass writes; it overwrites them;
                                          NULL where the use is frozen */
    struct unit_sums sums;
    void *buffers[UNIT_MAX_BUFFERS]; /* in the order in which the unit declared them */
    enum keep rebuild;               /* PASS_REBUILD: rebuild all buffers with keep >= rebuild */

    /* The input stream, (N, C) each with N = unit_stream_rows. pending may be NULL; both are NULL
     * for the first unit. */
    const void *residual, *pending;
    void *room; /* (N, C) for one output tensor, valid until the next unit has run. In a backward
                   pass: scratch */
    /* Set by forward: in one of the unit's own buffers, or `room`. */
    const void *out_residual, *out_pending;
    void *gradient; /* (N, C) backward: of the output stream in, of the input stream out */

    /* The carry, where the graph has one. A forward pass sets out_carry to one of the unit's own
     * buffers, or to a part of its cache; the next unit gets the address as `carry`, in forward and
     * in backward passes. Where buffers are shared by units, this may be the memory in which the
     * next unit forms its own carry: it must read before it writes. NULL: no carry. */
    const void *carry, *out_carry;
    void *carry_gradient; /* (carry) backward: of out_carry in, of `carry` out */
    int64_t step_rows;    /* B T of all micro-batches of the step */

    double *loss;     /* PASS_LOSS, PASS_EVAL: the sum of the losses of this micro-batch */
    float *statistic; /* (statistic_count) the unit adds to it; NULL in other passes than forward,
                         backward and loss of a step */
    void *logits;     /* PASS_LOGITS: (B, logit_tokens, V) for the last positions */
    int64_t logit_tokens;
    void *cache;          /* PASS_DECODE: cache_bytes of this unit */
    struct past past;     /* positions that are in the cache already */
    int64_t cache_tokens; /* positions that the cache has room for */
    int64_t text_tokens;  /* PASS_DECODE: tokens of the sequence, with all that are being fed */
};

typedef void unit_pass_fn(const struct unit *unit, struct unit_run *run);

struct unit_type {
    const char *name;
    uint32_t reads[PASS_COUNT];    /* bit u: the pass reads params[u] */
    uint32_t writes[PASS_COUNT];   /* bit u: the pass writes grads[u] */
    unit_pass_fn *run[PASS_COUNT]; /* NULL: the unit has no such pass */
    /* Bit u: the pass uses params[u] only as W of linear layers or as the table of an embedding,
     * and tells these ops that it is in bf16 where unit_run.bf16 is set. */
    uint32_t takes_bf16[PASS_COUNT];
    /* Fill `list` (UNIT_MAX_BUFFERS entries) in the order of unit_run.buffers; return the count. */
    int (*buffers)(const struct unit *unit, const struct ops *ops, struct unit_shape shape,
                   struct unit_buffer *list);
    /* Approximate operations of a forward pass, by which PP stages are balanced. NULL: almost none.
     */
    int64_t (*work)(const struct unit *unit, struct unit_shape shape);
    bool differs; /* units of this type differ in their buffers: see needs_copy in activations.c */
    bool takes_carry; /* passes read the carry of the unit before */
    /* Bytes of the decoding cache for `batch` sequences of `tokens` tokens; NULL: no cache. */
    size_t (*cache_bytes)(const struct unit *unit, const struct ops *ops, int64_t batch,
                          int64_t tokens);
};

#define UNIT_ALL_USES 0xffffffffu /* in reads and writes: every use of the unit */

struct unit {
    char name[UNIT_NAME]; /* "block 3" */
    const struct unit_type *type;
    const void *self; /* borrowed: the type's own sizes and tables */
    int use_count;
    int uses[UNIT_MAX_USES]; /* indices of params */
    uint32_t frozen;         /* bit u: no pass writes grads[u], which is NULL (unit_freeze.h) */
    int64_t in_width,
        out_width; /* of the stream before and after it; 0: the graph's stream_width */
    /* Its part of the statistic, a vector that is summed over the micro-batches of a step. */
    int64_t first_statistic, statistic_count;
};

/* --- a model -------------------------------------------------------------------------------- */
/* An array of the data of a micro-batch. */
struct unit_input {
    const char *name;
    size_t bytes; /* of one sample (sequence) */
};

/* A whole model, or one PP stage of it, as store and engine see it. The tables belong to the code
 * that built them. */
struct unit_graph {
    const struct unit_tensor *tensors;
    const struct unit_param *params;
    const struct unit_piece *pieces;
    const struct unit *units;
    int tensor_count, param_count, piece_count, unit_count;
    int backward_from;    /* no unit before this one learns, nor needs a backward pass */
    bool part;            /* a part of a model (unit_cut.h): its last unit need not have a loss */
    int64_t stream_width; /* C of the residual stream; the largest, where units differ */
    int sequence;         /* as in unit_shape: what partial gradients were declared for */
    int64_t vocab;        /* tokens are 0 .. vocab-1 */
    int64_t context;      /* longest sequence */
    int64_t short_text;   /* sequences of more tokens are computed in another way from their first
                             token on: what was cached for a shorter one is of no use; 0: there are
                             none */
    const struct unit_input *inputs; /* NULL: tokens and labels of a language model */
    int input_count;
    /* What the loss of a micro-batch is divided by; NULL: the number of labels that are not masked.
     * `inputs` are in host memory. */
    double (*count)(const struct unit_graph *graph, struct unit_shape shape,
                    const void *const *inputs);
    const void *self;   /* borrowed: for `count` */
    int64_t statistics; /* length of the statistic of the whole model */
    int64_t carry;      /* elements of the carry, in the compute type; 0: none */
};

int64_t unit_tensor_count(const struct unit_tensor *tensor); /* elements that this rank has */
int64_t unit_tensor_whole(const struct unit_tensor *tensor); /* elements of the whole tensor */
/* The index in the whole tensor of this rank's element `local`. *run is the number of elements from
 * there on that are consecutive both here and in the whole tensor; run may be NULL. */
int64_t unit_tensor_index(const struct unit_tensor *tensor, int64_t local, int64_t *run);
/* How many of this rank's elements have an index below `index` in the whole tensor. So the elements
 * that this rank has of a range of the whole tensor form a range, too. */
int64_t unit_tensor_before(const struct unit_tensor *tensor, int64_t index);
/* A cut tensor consists of lines: one section each, for each index before `dim`. A rank has a run of
 * consecutive elements of every line, and line n begins at n' runs of its part and at n' lines of the
 * whole tensor. n' = n where all lines are equal; the first may be `lead` times as long as the
 * others. */
struct unit_lines {
    int64_t run, line; /* elements of a line, here and in the whole tensor */
    int64_t start;     /* of the run in its line */
    int64_t lead;      /* of the first line: both sizes and the start are so many times as large */
};
struct unit_lines unit_tensor_lines(const struct unit_tensor *tensor); /* of a cut tensor */
static inline int64_t unit_line_place(const struct unit_lines *lines, int64_t n) /* n' */
{
    return n == 0 ? 0 : n + lines->lead - 1;
}
/* Whether this rank accounts for its part in sums and files. One of the replicas does. */
bool unit_tensor_answers(const struct unit_tensor *tensor);
/* Elements of all tensors of a param: that this rank has, that all ranks have together, and that
 * the rank with the most has. */
int64_t unit_param_count(const struct unit_graph *graph, int param);
int64_t unit_param_whole(const struct unit_graph *graph, int param);
int64_t unit_param_room(const struct unit_graph *graph, int param);
/* Blocks of 64 elements of a piece: no block spans two params. */
int64_t unit_piece_blocks(const struct unit_graph *graph, int piece);
int unit_param_of(const struct unit_graph *graph, int tensor); /* the param that holds it */
int64_t unit_graph_count(const struct unit_graph *graph);      /* elements of all whole tensors */
bool unit_reads(const struct unit *unit, enum pass pass, int use);
bool unit_writes(const struct unit *unit, enum pass pass, int use);
uint32_t unit_written_uses(const struct unit *unit, enum pass pass); /* bit u: writes grads[u] */
bool unit_is_frozen(const struct unit *unit);                        /* all its uses are */
/* The pieces that unit u uses in any pass, each once, in ascending order; returns their count. */
int unit_pieces(const struct unit_graph *graph, int u, int pieces[UNIT_MAX_USES]);
/* Whether a param of the piece is among these uses of unit u (bit i: use i). */
bool unit_uses_piece(const struct unit_graph *graph, int u, uint32_t uses, int piece);
/* frozen (pieces): whether no unit writes a gradient of the piece, so that its params are never
 * updated. */
void unit_find_frozen(const struct unit_graph *graph, bool *frozen);
/* The phase of a param. */
enum unit_phase unit_param_phase(const struct unit_graph *graph, int param);
bool unit_has_phase(const struct unit_graph *graph, enum unit_phase phase);
/* Bit p: pass p of unit u reads a param of the piece, or writes its gradient. */
uint32_t unit_reading_passes(const struct unit_graph *graph, int u, int piece);
uint32_t unit_writing_passes(const struct unit_graph *graph, int u, int piece);
/* Whether any pass of unit u writes the gradient of a param of the piece. */
bool unit_writes_piece(const struct unit_graph *graph, int u, int piece);
/* Whether units u and v use the same param of the piece. */
bool unit_share_param(const struct unit_graph *graph, int u, int v, int piece);
/* The width of the stream before and after unit u. */
int64_t unit_in_width(const struct unit_graph *graph, int u);
int64_t unit_out_width(const struct unit_graph *graph, int u);
bool unit_has_parts(const struct unit *unit); /* backward-input and backward-weight */
void unit_run_pass(const struct unit *unit, enum pass pass,
                   struct unit_run *run); /* CHECKs that the unit has the pass */
int64_t unit_work(const struct unit *unit, struct unit_shape shape); /* at least 1 */
/* CHECKs that the tables are consistent: indices, order, unique names, a loss in the last unit.
 * Aborts with the name of the entry that is not. */
void unit_graph_check(const struct unit_graph *graph);

#endif
