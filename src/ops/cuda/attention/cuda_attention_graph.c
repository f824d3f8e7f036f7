/* cuda_attention_graph -- attention in the form that cuDNN's flash engines recognize.
 *
 * They match a fixed pattern, including the order of operations: fprop is product, scale, mask by
 * row and column index, softmax (largest, difference, exp, sum, quotient; lse = largest + log
 * sum), product; bprop is the chain from dout . out over the probabilities, recomputed from lse,
 * to dv, ds, dk and dq. Tensors are views into qkv and dqkv, (B, T, (H + 2G) D); keys are passed
 * transposed, and so are values in bprop. Intermediate values are float, except the inputs of a
 * second product, which have the compute type.
 *
 * The usual bprop adds to an fp32 copy of dq with atomics. The deterministic form is another
 * graph: dq is the product's own output, and cuDNN keeps dS in its workspace, T x T elements per
 * head.
 */
#include "ops/cuda/attention/cuda_cudnn.h"

struct views { /* the tensors of one attention */
    cudnnDataType_t type;
    struct dnn_shape q, kv, out;     /* (B, H, T, D), (B, G, T, D), (B, H, T, D) */
    struct dnn_shape scores, column; /* (B, H, T, T), (B, H, T, 1), dense */
};

static struct views views_of(enum dtype type, struct attention a)
{
    int64_t D = a.head_width, row = (a.heads + 2 * a.kv_heads) * D, T = a.tokens;
    return (struct views){
        .type = type == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
        .q = {{a.batch, a.heads, T, D}, {T * row, D, row, 1}},
        .kv = {{a.batch, a.kv_heads, T, D}, {T * row, D, row, 1}},
        .out = {{a.batch, a.heads, T, D}, {T * a.heads * D, D, a.heads * D, 1}},
        .scores = dnn_dense(a.batch, a.heads, T, T),
        .column = dnn_dense(a.batch, a.heads, T, 1),
    };
}

static struct dnn_shape by_head_of(struct views v) /* (B, H, T, D), dense */
{
    return dnn_dense(v.q.sizes[0], v.q.sizes[1], v.q.sizes[2], v.q.sizes[3]);
}

static dnn_tensor floats(struct dnn_graph *g, struct dnn_shape shape)
{
    return dnn_virtual(g, CUDNN_DATA_FLOAT, shape);
}

/* x where column <= row, minus infinity elsewhere */
static dnn_tensor causal(struct dnn_graph *g, struct views v, dnn_tensor x)
{
    dnn_tensor row = dnn_index(g, 2, x, dnn_virtual(g, CUDNN_DATA_INT32, v.scores));
    dnn_tensor column = dnn_index(g, 3, x, dnn_virtual(g, CUDNN_DATA_INT32, v.scores));
    dnn_tensor seen = dnn_compare(g, CUDNN_POINTWISE_CMP_GE, row, column,
                                  dnn_virtual(g, CUDNN_DATA_BOOLEAN, v.scores));
    return dnn_select(g, seen, x, dnn_scalar(g, MASKED), floats(g, v.scores));
}

static void build_forward(struct dnn_graph *g, struct views v)
{
    dnn_tensor q = dnn_real(g, Q, v.type, v.q);
    dnn_tensor k = dnn_real(g, K, v.type, dnn_transposed(v.kv));
    dnn_tensor values = dnn_real(g, V, v.type, v.kv);

    dnn_tensor s = dnn_matmul(g, q, k, floats(g, v.scores));
    s = dnn_pointwise(g, CUDNN_POINTWISE_MUL, s, dnn_scalar(g, SCALE), floats(g, v.scores));
    s = causal(g, v, s);

    dnn_tensor largest = dnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, s, floats(g, v.column));
    dnn_tensor e = dnn_pointwise(g, CUDNN_POINTWISE_SUB, s, largest, floats(g, v.scores));
    e = dnn_pointwise(g, CUDNN_POINTWISE_EXP, e, NULL, floats(g, v.scores));
    dnn_tensor sum = dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, e, floats(g, v.column));
    dnn_tensor log = dnn_pointwise(g, CUDNN_POINTWISE_LOG, sum, NULL, floats(g, v.column));
    dnn_pointwise(g, CUDNN_POINTWISE_ADD, largest, log,
                  dnn_real(g, LSE, CUDNN_DATA_FLOAT, v.column));
    dnn_tensor p = dnn_pointwise(g, CUDNN_POINTWISE_DIV, e, sum, dnn_virtual(g, v.type, v.scores));

    dnn_matmul(g, p, values, dnn_real(g, OUT, v.type, v.out));
}

/* The product of a transposed (T, T) and (T, D) by query head, as the gradient of a key or value;
 * summed over the query heads of a group, if there are groups. */
static void to_group(struct dnn_graph *g, struct views v, dnn_tensor square, dnn_tensor rows,
                     enum attention_name gradient)
{
    dnn_tensor turned = dnn_reshape(g, square, dnn_virtual(g, v.type, dnn_transposed(v.scores)));
    dnn_tensor y = dnn_real(g, gradient, v.type, v.kv);
    if (v.q.sizes[1] == v.kv.sizes[1]) {
        dnn_matmul(g, turned, rows, y);
        return;
    }
    dnn_tensor all = dnn_matmul(g, turned, rows, dnn_virtual(g, v.type, by_head_of(v)));
    dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, all, y);
}

static void build_backward(struct dnn_graph *g, struct views v, bool fast)
{
    dnn_tensor q = dnn_real(g, Q, v.type, v.q);
    dnn_tensor k = dnn_real(g, K, v.type, dnn_transposed(v.kv));
    dnn_tensor values = dnn_real(g, V, v.type, dnn_transposed(v.kv));
    dnn_tensor out = dnn_real(g, OUT, v.type, v.out), dout = dnn_real(g, DOUT, v.type, v.out);
    dnn_tensor scale = dnn_scalar(g, SCALE);

    /* sums = dout . out; the engines expect the factor that dropout would add here */
    dnn_tensor x = dnn_pointwise(g, CUDNN_POINTWISE_MUL, dout, out, floats(g, by_head_of(v)));
    x = dnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, floats(g, v.column));
    dnn_tensor sums = dnn_pointwise(g, CUDNN_POINTWISE_MUL, x, dnn_scalar(g, ONE),
                                    dnn_real(g, SUMS, CUDNN_DATA_FLOAT, v.column));

    /* p = exp(scale q k - lse), and dv = p^T dout */
    dnn_tensor s = dnn_matmul(g, q, k, floats(g, v.scores));
    s = dnn_pointwise(g, CUDNN_POINTWISE_MUL, s, scale, floats(g, v.scores));
    s = dnn_pointwise(g, CUDNN_POINTWISE_SUB, s, dnn_real(g, LSE, CUDNN_DATA_FLOAT, v.column),
                      floats(g, v.scores));
    s = causal(g, v, s);
    dnn_tensor p = dnn_pointwise(g, CUDNN_POINTWISE_EXP, s, NULL, floats(g, v.scores));
    to_group(g, v, p, dout, DV);

    /* ds = scale p (dout v - sums), and dk = ds^T q, dq = ds k */
    dnn_tensor ds = dnn_matmul(g, dout, values, floats(g, v.scores));
    ds = dnn_pointwise(g, CUDNN_POINTWISE_SUB, ds, sums, floats(g, v.scores));
    ds = dnn_pointwise(g, CUDNN_POINTWISE_MUL, ds, p, floats(g, v.scores));
    ds = dnn_pointwise(g, CUDNN_POINTWISE_MUL, ds, scale, floats(g, v.scores));
    to_group(g, v, ds, q, DK);
    dnn_tensor keys = dnn_reshape(g, k, dnn_virtual(g, v.type, v.kv));
    dnn_tensor dq = dnn_real(g, DQ, v.type, v.q);
    if (!fast) {
        dnn_matmul(g, ds, keys, dq);
        return;
    }
    dnn_tensor sum = dnn_matmul(g, ds, keys, dnn_real(g, DQ_SUM, CUDNN_DATA_FLOAT, by_head_of(v)));
    dnn_pointwise(g, CUDNN_POINTWISE_IDENTITY, sum, NULL, dq);
}

enum status attention_graph_plan(struct env *env, enum dtype type, struct attention a,
                                 enum attention_pass pass, cudnnHandle_t handle,
                                 size_t workspace_bytes, struct dnn_plan *plan)
{
    struct dnn_graph graph;
    dnn_graph_open(&graph, env);
    if (pass == ATTENTION_FORWARD)
        build_forward(&graph, views_of(type, a));
    else
        build_backward(&graph, views_of(type, a), pass == ATTENTION_BACKWARD_FAST);
    return dnn_plan_create(&graph, handle, pass != ATTENTION_BACKWARD_FAST, workspace_bytes, plan);
}

bool attention_graph_takes(enum dtype type, struct attention a)
{
    return (type == DTYPE_BF16 || type == DTYPE_F16) && a.head_width % 8 == 0 &&
           a.head_width <= 256 && a.window == 0 && !(a.cap > 0);
}

size_t attention_graph_scores(struct attention a)
{
    size_t tokens = ((size_t)a.tokens + 127) / 128 * 128;
    return (size_t)(a.batch * a.heads) * tokens * tokens * 2;
}

size_t attention_graph_workspace(enum attention_pass pass, struct attention a)
{
    enum { SLACK = 4 << 20 }; /* 256 bytes observed */
    size_t by_head = (size_t)(a.batch * a.heads * a.tokens * a.head_width) * 2;
    size_t scores = pass == ATTENTION_BACKWARD ? attention_graph_scores(a) : 0;
    bool grouped = pass != ATTENTION_FORWARD && a.heads != a.kv_heads;
    return scores + (grouped ? 2 * by_head : 0) + SLACK;
}
