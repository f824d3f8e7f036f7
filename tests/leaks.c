/* leaks -- whether a test that ends under AddressSanitizer is worth a search for leaks.
 *
 * A search takes three seconds on arm64, whatever the test has done: the sanitizer walks the map of
 * the whole address space. So allocations and releases are counted while main runs, and where they
 * come out even there is nothing to search for. What libraries keep for the life of the process makes
 * a difference, and then the search decides, as it would without this file. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sanitizer/allocator_interface.h>
#include <sanitizer/lsan_interface.h>

static atomic_long taken;          /* blocks that are not given back yet */
static atomic_bool even;           /* when main had ended */
static char stdout_buffer[BUFSIZ]; /* the one block that every test would keep */

static void on_malloc(const volatile void *block, size_t bytes)
{
    (void)bytes;
    taken += block != NULL;
}

static void on_free(const volatile void *block)
{
    taken -= block != NULL;
}

static void note_balance(void)
{
    even = taken == 0;
}

__attribute__((constructor)) static void count_blocks(void)
{
    setvbuf(stdout, stdout_buffer, _IOLBF, sizeof stdout_buffer);
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    atexit(note_balance); /* before libraries release what they took ahead of main */
}

/* Asked by the sanitizer before it searches. */
int __lsan_is_turned_off(void)
{
    return even;
}
