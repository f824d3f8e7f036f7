/* leaks -- decides whether LeakSanitizer needs to search for leaks at the end of a test.
 *
 * A search takes three seconds on arm64 for any test, because the sanitizer scans the map of the
 * whole address space. So this file counts allocations and frees while main runs. If they balance,
 * there is nothing to search for. What the loader and OpenMP allocate for threads is not counted:
 * they keep it for the next thread. Memory that other libraries keep until the process ends breaks
 * the balance; then the search runs, as it would without this file. */
#include <dlfcn.h>
#include <link.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sanitizer/allocator_interface.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/lsan_interface.h>

static atomic_long live_blocks;    /* counted blocks that have not been freed */
static atomic_bool balanced;       /* the counts balanced when main returned */
static char stdout_buffer[BUFSIZ]; /* else every test would keep this one block */

enum { LIBRARIES = 2 };
static const char *const libraries[LIBRARIES] = {"/ld-linux", "/libomp.so"};
static struct {
    uintptr_t first, end;
} code[LIBRARIES]; /* their addresses */

static int note_library(struct dl_phdr_info *library, size_t bytes, void *unused)
{
    (void)bytes, (void)unused;
    for (int i = 0; i < LIBRARIES; i++)
        for (int p = 0; p < library->dlpi_phnum && strstr(library->dlpi_name, libraries[i]); p++) {
            const ElfW(Phdr) *segment = &library->dlpi_phdr[p];
            if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X)) {
                code[i].first = library->dlpi_addr + segment->p_vaddr;
                code[i].end = code[i].first + segment->p_memsz;
            }
        }
    return 0;
}

/* The caller of malloc follows malloc itself in the stack that the sanitizer keeps of a block. */
static bool is_counted(const volatile void *block)
{
    void *stack[2] = {NULL};
    int thread;
    if (block == NULL)
        return false;
    __asan_get_alloc_stack((void *)(uintptr_t)block, stack, 2, &thread);
    for (int i = 0; i < LIBRARIES; i++)
        if ((uintptr_t)stack[1] >= code[i].first && (uintptr_t)stack[1] < code[i].end)
            return false;
    return true;
}

static void on_malloc(const volatile void *block, size_t bytes)
{
    (void)bytes;
    live_blocks += is_counted(block);
}

static void on_free(const volatile void *block)
{
    live_blocks -= is_counted(block);
}

static void note_balance(void)
{
    balanced = live_blocks == 0;
}

__attribute__((constructor)) static void count_blocks(void)
{
    setvbuf(stdout, stdout_buffer, _IOLBF, sizeof stdout_buffer);
    setenv("KMP_AFFINITY", "disabled", 1); /* as placement_prepare, before OpenMP is used */
    omp_get_max_threads();                 /* it loads libraries, which allocate */
    dlerror();                             /* frees the message about those that it did not find */
    dl_iterate_phdr(note_library, NULL);
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    atexit(note_balance); /* before libraries free what they allocated before main */
}

/* Called by the sanitizer before a search. */
int __lsan_is_turned_off(void)
{
    return balanced;
}

/* clang's OpenMP library keeps its old tables of threads when a team is larger than any before. */
const char *__lsan_default_suppressions(void)
{
    return "leak:libomp.so\n";
}
