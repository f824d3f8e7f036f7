/* ops_cuda -- the table of the cuda back end: supported types, opening, closing, and every slot.
 *
 * No slot falls back to the ref back end, which would read device memory on the host. The table
 * therefore starts empty, each family of ops adds its slots, and an empty slot is found here, at
 * start-up, instead of in the middle of a step.
 *
 * On Hopper, AdamW, the backward pass of norms, the loss with its gradient, attention, and products
 * with a GELU or SwiGLU have kernels of their own. AdamW and the loss have the same bits as the
 * kernels for all GPUs; the others do not.
 */
#include <stdlib.h>
#include <string.h>
#include "base/text.h"
#include "ops/cuda/attention/cuda_attention.h"
#include "ops/cuda/cuda_impl.h"
#include "ops/cuda/product/cuda_product.h"

#define CHUNK_LOGITS ((int64_t)1 << 29) /* 1 GiB in 16 bits */

/* ops->workspace: the part of the products, then AdamW's tile counter and the arrival counters of
 * attention with a cache. */
#define ADAMW_TAKEN    PRODUCTS_WORKSPACE
#define CACHED_ARRIVED (ADAMW_TAKEN + 64)
#define WORKSPACE      (CACHED_ARRIVED + CUDA_CACHED_ARRIVED * sizeof(unsigned))

static bool cuda_supports(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16;
}

enum status cuda_word(struct env *env, const char *variable, const char *const *words, int *word)
{
    const char *asked = getenv(variable);
    struct text known;
    *word = -1;
    if (!asked)
        return STATUS_OK;
    for (int i = 0; words[i]; i++)
        if (!strcmp(asked, words[i])) {
            *word = i;
            return STATUS_OK;
        }
    text_init(&known, env);
    for (int i = 0; words[i]; i++)
        text_printf(&known, "%s%s", i == 0 ? "" : words[i + 1] ? ", " : " or ", words[i]);
    enum status st =
        FAIL(env, CONFIG, "%s=%s: unknown value; use %s", variable, asked, text_string(&known));
    text_free(&known);
    return st;
}

bool cuda_is_exact(void)
{
    const char *asked = getenv("SIFR_CUDA_EXACT");
    return asked && !strcmp(asked, "1");
}

static enum status adamw_open(struct ops *ops, struct cuda_ops *cuda)
{
    cuda->adamw_taken = (unsigned long long *)((char *)ops->workspace + ADAMW_TAKEN);
    cudaSetDevice(cuda_device_of(ops->device)->index);
    return cuda_status(device_env(ops->device),
                       cudaEventCreateWithFlags(&cuda->adamw_done, cudaEventDisableTiming),
                       "creating an event");
}

static void adamw_close(struct ops *ops, struct cuda_ops *cuda)
{
    cudaSetDevice(cuda_device_of(ops->device)->index);
    cudaEventDestroy(cuda->adamw_done);
}

static enum status cuda_ops_open(struct ops *ops)
{
    enum status st;
    struct env *env = device_env(ops->device);
    struct cuda_ops *cuda;
    TRY(mem_alloc(env, MEM_OTHER, "ops", sizeof *cuda, &cuda));
    ops->state = cuda;
    cuda->cached_arrived = (unsigned *)((char *)ops->workspace + CACHED_ARRIVED);
    cuda->is_hopper = device_capability(ops->device) == 90;
    TRY_OR(undo_self, adamw_open(ops, cuda));
    TRY_OR(undo_adamw, cuda_linear_open(ops, &cuda->linear));
    TRY_OR(undo_linear, cuda_attention_open(ops, &cuda->attention));
    return STATUS_OK;
undo_linear:
    cuda_linear_close(ops, cuda->linear);
undo_adamw:
    adamw_close(ops, cuda);
undo_self:
    ops->state = NULL;
    mem_free(env, cuda);
    return st;
}

static void cuda_ops_close(struct ops *ops)
{
    struct cuda_ops *cuda = cuda_ops_of(ops);
    cuda_attention_close(ops, cuda->attention);
    cuda_linear_close(ops, cuda->linear);
    adamw_close(ops, cuda);
    mem_free(device_env(ops->device), cuda);
    ops->state = NULL;
}

/* All members from the first op on are function pointers. */
static void check_whole(const struct ops_backend *table)
{
    typedef void slot_fn(void);
    size_t at = offsetof(struct ops_backend, linear);
    for (; at < sizeof *table; at += sizeof(slot_fn *)) {
        slot_fn *slot;
        memcpy(&slot, (const char *)table + at, sizeof slot);
        CHECK(slot != NULL);
    }
}

CUDA_ENTRY void sifr_ops_cuda_fill(struct ops_backend *table);
void sifr_ops_cuda_fill(struct ops_backend *table)
{
    *table = (struct ops_backend){.name = "cuda",
                                  .supports = cuda_supports,
                                  .open = cuda_ops_open,
                                  .close = cuda_ops_close,
                                  .chunk_logits = CHUNK_LOGITS,
                                  .row_bytes = 16, /* of a pack (vector.cuh), and cuBLASLt's */
                                  .workspace_bytes = WORKSPACE};
    cuda_linear_fill(table);
    cuda_orthogonalize_fill(table);
    cuda_attention_fill(table);
    cuda_slots_fill(table);
    check_whole(table);
}
