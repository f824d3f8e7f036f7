/* cpu_blas -- makes OpenBLAS and OpenMP allocate their memory before the first product; and what
 * they report about themselves.
 *
 * OpenBLAS has one table of buffers for the process. A product uses a free buffer or maps a new
 * one, and retries forever if the system refuses: a run would hang in its first step. So opening
 * the back end allocates one buffer for each thread of all open ops at the same time, each after
 * checking that the system would grant it. The library keeps what it has mapped, so no later
 * product maps any.
 *
 * The library does not report the size of a buffer (Debian 12: 32 MiB on arm64, 128 MiB on x86-64).
 * OPS_BLAS_BUFFER_BYTES is an upper bound. A buffer is address space of which products touch a few
 * MiB, so the memory account does not include it; the touched part shows as runtime memory.
 */
#include <cblas.h>
#include <pthread.h>
#include "base/text.h"
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_kernel.h"
#include "ops/cpu/cpu_level.h"

/* OpenBLAS exports these but declares them in no header; another BLAS may lack them. */
extern void *blas_memory_alloc(int location) __attribute__((weak));
extern void blas_memory_free(void *buffer) __attribute__((weak));

/* The library's table and settings belong to the process, and so does this state. */
static struct {
    pthread_mutex_t lock;
    int threads; /* of all open ops */
} blas = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Products of more threads at once overrun the library's tables, and the process crashes. */
enum { MOST_THREADS = 512 };

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

/* Make the library map `count` buffers: allocate them together, then free them. The allocated
 * buffers form a list: each starts with the address of the previous one. */
static bool reserve_buffers(int count)
{
    void *held = NULL;
    int taken = 0;
    bool given = true;
    while (taken < count && (given = mem_is_there(OPS_BLAS_BUFFER_BYTES)) &&
           blas_memory_alloc != NULL) {
        void **buffer = blas_memory_alloc(0);
        if (buffer == NULL) /* the table is full: no product can map more */
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

/* Without memory, both libraries would later end or hang the process. */
static bool reserve_memory(const struct ops *ops)
{
    if (!reserve_buffers(blas.threads + ops->threads))
        return false;
    if (ops->threads > 1 && !mem_is_there((size_t)(ops->threads - 1) * stack_bytes()))
        return false;
    IN_THREADS(ops->threads, (void)0); /* starts the threads, which stay */
    return true;
}

enum status cpu_blas_open(struct ops *ops)
{
    TRY(cpu_kernel_check(device_env(ops->device)));
    cpu_kernel_bf16(); /* asks the system for AMX, before the threads start */
    pthread_mutex_lock(&blas.lock);
    /* Changing the number while another engine multiplies would break that engine's buffers, so
     * only the first one to open changes it. */
    if (openblas_get_num_threads() != 1)
        openblas_set_num_threads(1);
    int threads = blas.threads + ops->threads;
    bool reserved = threads <= MOST_THREADS && reserve_memory(ops);
    if (reserved)
        blas.threads = threads;
    pthread_mutex_unlock(&blas.lock);
    char human[32];
    if (threads > MOST_THREADS)
        return FAIL(device_env(ops->device), CONFIG,
                    "run.threads: the BLAS library cannot multiply in %d threads at once; use at "
                    "most %d in all ranks of a process",
                    threads, MOST_THREADS);
    return reserved
               ? STATUS_OK
               : FAIL(
                     device_env(ops->device), MEMORY,
                     "out of memory for the BLAS library: each of %d thread%s needs a buffer of up "
                     "to %s, which the system refuses; raise the memory limit (ulimit -v, "
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

bool cpu_blas_is_open(void)
{
    pthread_mutex_lock(&blas.lock);
    bool open = blas.threads > 0;
    pthread_mutex_unlock(&blas.lock);
    return open;
}

/* --- reports -------------------------------------------------------------------------------- */

static const char *flavour(void)
{
    switch (openblas_get_parallel()) {
    case OPENBLAS_OPENMP: return "openmp";
    case OPENBLAS_THREAD: return "pthread";
    default: return "serial";
    }
}

void ops_cpu_info(struct ops_info *info)
{
    *info = (struct ops_info){
        .blas = openblas_get_config(),
        .core = openblas_get_corename(),
        .flavour = flavour(),
        .kernels = cpu_kernel_set(),
        .vectors = cpu_level()->vectors(),
        .products = cpu_kernel() ? cpu_kernel()->name : "OpenBLAS",
        .bf16_products = cpu_kernel_bf16() ? cpu_kernel_bf16()->name : "",
        .note = cpu_kernel_note(),
        .openmp = _OPENMP,
    };
}
