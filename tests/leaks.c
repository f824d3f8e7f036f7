/* leaks -- decides whether LeakSanitizer needs to search for leaks at the end of a test.
 *
 * A search takes three seconds on arm64 for any test, because the sanitizer scans the map of the
 * whole address space. So this file counts allocations and frees while main runs. If they balance,
 * there is nothing to search for. Memory that libraries keep until the process ends breaks the
 * balance; then the search runs, as it would without this file. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sanitizer/allocator_interface.h>
#include <sanitizer/lsan_interface.h>

static atomic_long live_blocks;    /* blocks that have not been freed */
static atomic_bool balanced;       /* the counts balanced when main returned */
static char stdout_buffer[BUFSIZ]; /* else every test would keep this one block */

static void on_malloc(const volatile void *block, size_t bytes)
{
    (void)bytes;
    live_blocks += block != NULL;
}

static void on_free(const volatile void *block)
{
    live_blocks -= block != NULL;
}

static void note_balance(void)
{
    balanced = live_blocks == 0;
}

__attribute__((constructor)) static void count_blocks(void)
{
    setvbuf(stdout, stdout_buffer, _IOLBF, sizeof stdout_buffer);
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
