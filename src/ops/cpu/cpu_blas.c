/* cpu_blas -- makes OpenBLAS and the team take their memory before the first product.
 *
 * OpenBLAS has one table of buffers for the process. A product takes a free buffer or maps a new one,
 * and tries for ever when the system refuses: a run would hang in its first step. So ops that are
 * opened take, all at once, a buffer for each thread of all open ops, each after a look whether the
 * system would give it. The library keeps what it has mapped: no later product maps any.
 *
 * The library does not say how large a buffer is (Debian 12: 32 MiB on arm64, 128 MiB on x86-64).
 * OPS_BLAS_BUFFER_BYTES is not less. A buffer is address space, of which products touch a few MiB, so it is
 * not in the account of memory; what is touched shows as memory of the runtime.
 */
#include <cblas.h>
#include <pthread.h>
#include "base/text.h"
#include "ops/cpu/cpu_impl.h"
#include "ops/ops_info.h"

/* Exported by OpenBLAS, in no header of it; another BLAS may have neither. */
extern void *blas_memory_alloc(int location) __attribute__((weak));
extern void blas_memory_free(void *buffer) __attribute__((weak));

/* The library's table and settings are the process's, and so is this. */
static struct {
    pthread_mutex_t lock;
    int threads; /* of all open ops */
} blas = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t stack_bytes(void)
{
    size_t bytes = 0;
    pthread_attr_t attributes;
    if (pthread_getattr_default_np(&attributes) == 0) {
        pthread_attr_getstacksize(&attributes, &bytes);
        pthread_attr_destroy(&attributes);
    }
    return bytes;
}

/* Take `count` buffers and give them back to the library. Those that are held are a list: each
 * begins with the address of the one before. */
static bool take_buffers(int count)
{
    void *held = NULL;
    int taken = 0;
    bool given = true;
    while (taken < count && (given = mem_is_there(OPS_BLAS_BUFFER_BYTES)) &&
           blas_memory_alloc != NULL) {
        void **buffer = blas_memory_alloc(0);
        if (buffer == NULL) /* the table is full: there will never be more */
            break;
        *buffer = held;
        held = buffer;
        taken++;
    }
    while (held != NULL) {
        void *before = *(void **)held;
        blas_memory_free(held);
        held = before;
    }
    return given;
}

/* Both libraries end or hang the process when they find no memory later. */
static bool take_memory(const struct ops *ops)
{
    if (!take_buffers(blas.threads + ops->threads))
        return false;
    if (ops->threads > 1 && !mem_is_there((size_t)(ops->threads - 1) * stack_bytes()))
        return false;
    IN_THREADS(ops->threads, (void)0); /* the team starts, and stays */
    return true;
}

enum status cpu_blas_open(struct ops *ops)
{
    pthread_mutex_lock(&blas.lock);
    /* To change it while another engine multiplies would break that engine's buffers: it is touched
     * once, by the first who finds it otherwise. */
    if (openblas_get_num_threads() != 1)
        openblas_set_num_threads(1);
    bool taken = take_memory(ops);
    if (taken)
        blas.threads += ops->threads;
    pthread_mutex_unlock(&blas.lock);
    char human[32];
    return taken
               ? STATUS_OK
               : FAIL(
                     device_env(ops->device), MEMORY,
                     "out of memory for the BLAS library: each of %d thread%s needs a buffer of up "
                     "to %s, and the system refuses; raise the limit of memory (ulimit -v, "
                     "vm.overcommit_memory) or lower run.threads",
                     ops->threads, ops->threads == 1 ? "" : "s",
                     text_human_bytes(human, (double)((size_t)128 << 20)));
}

void cpu_blas_close(struct ops *ops)
{
    pthread_mutex_lock(&blas.lock);
    blas.threads -= ops->threads;
    pthread_mutex_unlock(&blas.lock);
}
