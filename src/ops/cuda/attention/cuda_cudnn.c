/* cuda_cudnn -- cuDNN's descriptors are set attribute by attribute; `set` and `finalize` carry the
 * sticky error, everything else lists attributes.
 */
#include "ops/cuda/attention/cuda_cudnn.h"
#include <string.h>

enum { FIRST_VIRTUAL = 1000 }; /* numbers of tensors without a name */

enum status dnn_status(struct env *env, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return STATUS_OK;
    char detail[512] = "";
    cudnnGetLastErrorString(detail, sizeof detail);
    return FAIL(env, DEVICE, "cuDNN: %s failed: %s%s%s", what, cudnnGetErrorString(status),
                detail[0] ? ": " : "", detail);
}

struct dnn_shape dnn_dense(int64_t batch, int64_t heads, int64_t rows, int64_t columns)
{
    return (struct dnn_shape){{batch, heads, rows, columns},
                              {heads * rows * columns, rows * columns, columns, 1}};
}

struct dnn_shape dnn_transposed(struct dnn_shape s)
{
    return (struct dnn_shape){{s.sizes[0], s.sizes[1], s.sizes[3], s.sizes[2]},
                              {s.strides[0], s.strides[1], s.strides[3], s.strides[2]}};
}

void dnn_graph_open(struct dnn_graph *graph, struct env *env)
{
    memset(graph, 0, sizeof *graph);
    graph->env = env;
}

void dnn_graph_close(struct dnn_graph *graph)
{
    while (graph->descriptor_count)
        cudnnBackendDestroyDescriptor(graph->descriptors[--graph->descriptor_count]);
}

/* --- descriptors ---------------------------------------------------------------------------- */

static void check(struct dnn_graph *graph, cudnnStatus_t status, const char *what)
{
    if (!graph->error)
        graph->error = dnn_status(graph->env, status, what);
}

static cudnnBackendDescriptor_t create(struct dnn_graph *graph, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (graph->error)
        return NULL;
    CHECK_LT(graph->descriptor_count, DNN_DESCRIPTORS);
    check(graph, cudnnBackendCreateDescriptor(type, &descriptor), "making a descriptor");
    if (descriptor)
        graph->descriptors[graph->descriptor_count++] = descriptor;
    return descriptor;
}

static void set(struct dnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *values)
{
    if (!graph->error)
        check(graph, cudnnBackendSetAttribute(descriptor, name, type, count, values),
              "setting an attribute");
}

static void set_tensor(struct dnn_graph *graph, cudnnBackendDescriptor_t operation,
                       cudnnBackendAttributeName_t name, dnn_tensor tensor)
{
    set(graph, operation, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensor);
}

static void finalize(struct dnn_graph *graph, cudnnBackendDescriptor_t descriptor, const char *what)
{
    if (!graph->error)
        check(graph, cudnnBackendFinalize(descriptor), what);
}

static void finish_operation(struct dnn_graph *graph, cudnnBackendDescriptor_t operation,
                             const char *what)
{
    finalize(graph, operation, what);
    CHECK_LT(graph->operation_count, DNN_OPERATIONS);
    graph->operations[graph->operation_count++] = operation;
}

/* --- tensors -------------------------------------------------------------------------------- */

enum tensor_kind { TENSOR_REAL, TENSOR_VIRTUAL, TENSOR_BY_VALUE };

static dnn_tensor make_tensor(struct dnn_graph *graph, enum tensor_kind kind, int64_t name,
                              cudnnDataType_t type, struct dnn_shape shape)
{
    dnn_tensor t = create(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = 16;
    bool yes = true;
    set(graph, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    set(graph, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(graph, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(graph, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape.sizes);
    set(graph, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape.strides);
    if (kind == TENSOR_VIRTUAL)
        set(graph, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
    if (kind == TENSOR_BY_VALUE)
        set(graph, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
    finalize(graph, t, "describing a tensor");
    return t;
}

dnn_tensor dnn_real(struct dnn_graph *graph, int64_t name, cudnnDataType_t type,
                    struct dnn_shape shape)
{
    return make_tensor(graph, TENSOR_REAL, name, type, shape);
}

dnn_tensor dnn_virtual(struct dnn_graph *graph, cudnnDataType_t type, struct dnn_shape shape)
{
    return make_tensor(graph, TENSOR_VIRTUAL, FIRST_VIRTUAL + graph->virtual_count++, type, shape);
}

dnn_tensor dnn_scalar(struct dnn_graph *graph, int64_t name)
{
    return make_tensor(graph, TENSOR_BY_VALUE, name, CUDNN_DATA_FLOAT, dnn_dense(1, 1, 1, 1));
}

/* --- operations ----------------------------------------------------------------------------- */

dnn_tensor dnn_matmul(struct dnn_graph *graph, dnn_tensor a, dnn_tensor b, dnn_tensor y)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = create(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(graph, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(graph, how, "describing a product");
    cudnnBackendDescriptor_t op = create(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y);
    finish_operation(graph, op, "adding a product");
    return y;
}

/* `axis` is for GEN_INDEX only, `mask` for BINARY_SELECT only. */
static dnn_tensor pointwise(struct dnn_graph *graph, cudnnPointwiseMode_t mode,
                            cudnnDataType_t compute, int64_t axis, dnn_tensor x, dnn_tensor b,
                            dnn_tensor mask, dnn_tensor y)
{
    cudnnBackendDescriptor_t how = create(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(graph, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(graph, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        set(graph, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(graph, how, "describing a pointwise operation");
    cudnnBackendDescriptor_t op = create(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b)
        set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (mask)
        set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    finish_operation(graph, op, "adding a pointwise operation");
    return y;
}

dnn_tensor dnn_pointwise(struct dnn_graph *graph, cudnnPointwiseMode_t mode, dnn_tensor x,
                         dnn_tensor b, dnn_tensor y)
{
    return pointwise(graph, mode, CUDNN_DATA_FLOAT, 0, x, b, NULL, y);
}

dnn_tensor dnn_compare(struct dnn_graph *graph, cudnnPointwiseMode_t mode, dnn_tensor x,
                       dnn_tensor b, dnn_tensor y)
{
    return pointwise(graph, mode, CUDNN_DATA_BOOLEAN, 0, x, b, NULL, y);
}

dnn_tensor dnn_index(struct dnn_graph *graph, int64_t axis, dnn_tensor x, dnn_tensor y)
{
    return pointwise(graph, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis, x, NULL, NULL, y);
}

dnn_tensor dnn_select(struct dnn_graph *graph, dnn_tensor mask, dnn_tensor x, dnn_tensor otherwise,
                      dnn_tensor y)
{
    return pointwise(graph, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, x, otherwise, mask,
                     y);
}

dnn_tensor dnn_reduce(struct dnn_graph *graph, cudnnReduceTensorOp_t op, dnn_tensor x, dnn_tensor y)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = create(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(graph, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(graph, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(graph, how, "describing a reduction");
    cudnnBackendDescriptor_t reduce = create(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_tensor(graph, reduce, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    set_tensor(graph, reduce, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_tensor(graph, reduce, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    finish_operation(graph, reduce, "adding a reduction");
    return y;
}

dnn_tensor dnn_reshape(struct dnn_graph *graph, dnn_tensor x, dnn_tensor y)
{
    cudnnBackendDescriptor_t op = create(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_tensor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    finish_operation(graph, op, "adding a reshape");
    return y;
}

/* --- plans ---------------------------------------------------------------------------------- */

enum { CONFIGS = 16 }; /* engine configurations to try, best first */

/* The configurations that cuDNN proposes for the graph, best first; the graph owns the
 * descriptors. */
static int propose(struct dnn_graph *graph, cudnnHandle_t handle, cudnnBackendDescriptor_t *configs)
{
    cudnnBackendDescriptor_t ops = create(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(graph, ops, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(graph, ops, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        graph->operation_count, graph->operations);
    finalize(graph, ops, "closing a graph");
    cudnnBackendDescriptor_t asked = create(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    set_tensor(graph, asked, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, ops);
    set(graph, asked, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    for (int i = 0; i < CONFIGS; i++)
        configs[i] = create(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (graph->error)
        return 0;

    int64_t count = 0;
    if (cudnnBackendFinalize(asked) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(asked, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &count,
                                 configs) != CUDNN_STATUS_SUCCESS)
        return 0; /* no engine for this graph */
    return (int)(count < CONFIGS ? count : CONFIGS);
}

static bool deterministic(struct dnn_graph *graph, cudnnBackendDescriptor_t config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine = create(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0;
    if (graph->error ||
        cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                 1, &count, &engine) != CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                 CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count,
                                 notes) != CUDNN_STATUS_SUCCESS)
        return false;
    for (int64_t i = 0; i < count; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return false;
    return true;
}

/* A plan from one configuration, NULL if cuDNN rejects it; *bytes: its workspace. */
static cudnnBackendDescriptor_t plan_of(cudnnBackendDescriptor_t config, cudnnHandle_t handle,
                                        int64_t *bytes)
{
    cudnnBackendDescriptor_t plan = NULL;
    int64_t count = 0;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan) !=
        CUDNN_STATUS_SUCCESS)
        return NULL;
    if (cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                 &handle) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendSetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                 &config) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS &&
        cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                 1, &count, bytes) == CUDNN_STATUS_SUCCESS)
        return plan;
    cudnnBackendDestroyDescriptor(plan);
    return NULL;
}

enum status dnn_plan_create(struct dnn_graph *graph, cudnnHandle_t handle, bool exact,
                            size_t workspace_bytes, struct dnn_plan *plan)
{
    cudnnBackendDescriptor_t configs[CONFIGS] = {NULL};
    int count = propose(graph, handle, configs);
    struct env *env = graph->env;
    memset(plan, 0, sizeof *plan);
    for (int i = 0; i < count && !plan->plan; i++) {
        int64_t bytes = 0;
        if (exact && !deterministic(graph, configs[i])) {
            log_debug(env, "cuDNN: configuration %d of %d is not deterministic", i, count);
            continue;
        }
        cudnnBackendDescriptor_t made = plan_of(configs[i], handle, &bytes);
        if (made && (size_t)bytes <= workspace_bytes) {
            plan->plan = made;
            log_debug(env, "cuDNN: configuration %d of %d, workspace %lld bytes", i, count,
                      (long long)bytes);
        } else if (made) {
            log_debug(env, "cuDNN: configuration %d of %d needs %lld bytes of workspace, not %zu",
                      i, count, (long long)bytes, workspace_bytes);
            cudnnBackendDestroyDescriptor(made);
        }
    }
    if (!plan->plan) {
        char detail[512] = "";
        cudnnGetLastErrorString(detail, sizeof detail);
        log_debug(env, "cuDNN: no engine among %d for the graph: %s", count, detail);
        enum status st = graph->error;
        dnn_graph_close(graph);
        return st;
    }
    plan->graph = *graph;
    return STATUS_OK;
}

void dnn_plan_destroy(struct dnn_plan *plan)
{
    if (plan->plan)
        cudnnBackendDestroyDescriptor(plan->plan);
    dnn_graph_close(&plan->graph);
    memset(plan, 0, sizeof *plan);
}

enum status dnn_plan_run(const struct dnn_plan *plan, cudnnHandle_t handle, int count,
                         const int64_t *names, void *const *addresses, void *workspace)
{
    cudnnBackendDescriptor_t pack = NULL;
    cudnnStatus_t st = cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                      count, names);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                      CUDNN_TYPE_VOID_PTR, count, addresses);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                                      1, &workspace);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendFinalize(pack);
    if (st == CUDNN_STATUS_SUCCESS)
        st = cudnnBackendExecute(handle, plan->plan, pack);
    if (pack)
        cudnnBackendDestroyDescriptor(pack);
    return dnn_status(plan->graph.env, st, "running a plan");
}
