/* file_guard -- a SIGBUS handler and a process-wide table of maps.
 *
 * Signal handlers belong to the process, and so does the table. The handler can run on the reading
 * thread at any moment: it takes no lock and allocates nothing. An entry is claimed through its
 * first word and becomes visible with it. The system's default limit of maps (vm.max_map_count) is
 * below ENTRIES. Unused pages of the table are never touched.
 */
#include "base/file_guard.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ENTRIES = 1 << 16 };
enum { FREE = 0, CLAIMED = 1 }; /* values of `begin` without a map */

struct file_guard {
    atomic_uintptr_t begin; /* FREE, CLAIMED, or the address of the map; written last */
    atomic_size_t bytes;
    atomic_size_t good; /* readable bytes from the start; SIZE_MAX = all */
    dev_t device;
    ino_t inode;
};

static struct file_guard table[ENTRIES];
static atomic_uint used; /* entries below this were claimed at some time */
static atomic_uint next; /* where to start looking for a free entry */
static size_t page_bytes;
static struct sigaction before;

static size_t whole_pages(size_t bytes)
{
    return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

static struct file_guard *find(uintptr_t at)
{
    unsigned count = atomic_load(&used);
    for (unsigned i = 0; i < count; i++) {
        uintptr_t begin = atomic_load(&table[i].begin);
        if (begin > CLAIMED && at >= begin &&
            at - begin < whole_pages(atomic_load(&table[i].bytes)))
            return &table[i];
    }
    return NULL;
}

/* --- the handler ---------------------------------------------------------------------------- */

/* The mark is set first, so a thread that read zeros finds it. */
static bool fill_with_zeros(struct file_guard *guard, uintptr_t at)
{
    uintptr_t begin = atomic_load(&guard->begin), page = at / page_bytes * page_bytes;
    size_t left = whole_pages(atomic_load(&guard->bytes)) - (page - begin);
    size_t good = atomic_load(&guard->good);
    while (page - begin < good && !atomic_compare_exchange_weak(&guard->good, &good, page - begin))
        ;
    return mmap((void *)page, left, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
           MAP_FAILED;
}

static void hand_on(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        signal(SIGBUS, SIG_DFL);
        if (info->si_code <= 0) /* sent by a process: no read raises it again */
            raise(SIGBUS);
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    struct file_guard *guard = info->si_code > 0 ? find((uintptr_t)info->si_addr) : NULL;
    if (guard == NULL || !fill_with_zeros(guard, (uintptr_t)info->si_addr))
        hand_on(number, info, context);
}

static void set_up(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &before);
}

/* --- the table ------------------------------------------------------------------------------ */

static struct file_guard *claim(void)
{
    unsigned first = atomic_fetch_add(&next, 1);
    for (unsigned i = 0; i < ENTRIES; i++) {
        unsigned index = (first + i) % ENTRIES, count = atomic_load(&used);
        uintptr_t expected = FREE;
        if (!atomic_compare_exchange_strong(&table[index].begin, &expected, CLAIMED))
            continue;
        while (count <= index && !atomic_compare_exchange_weak(&used, &count, index + 1))
            ;
        return &table[index];
    }
    return NULL;
}

struct file_guard *file_guard_add(const void *data, const struct stat *info)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up);
    struct file_guard *guard = claim();
    if (guard == NULL)
        return NULL;
    guard->device = info->st_dev;
    guard->inode = info->st_ino;
    atomic_store(&guard->bytes, (size_t)info->st_size);
    atomic_store(&guard->good, SIZE_MAX);
    atomic_store(&guard->begin, (uintptr_t)data);
    return guard;
}

void file_guard_remove(struct file_guard *guard)
{
    if (guard != NULL)
        atomic_store(&guard->begin, FREE);
}

bool file_guard_look(const void *data, struct file_guard_news *news)
{
    const struct file_guard *guard = find((uintptr_t)data);
    if (guard == NULL)
        return false;
    *news = (struct file_guard_news){.failed = atomic_load(&guard->good) != SIZE_MAX,
                                     .at = atomic_load(&guard->good),
                                     .bytes = atomic_load(&guard->bytes),
                                     .device = guard->device,
                                     .inode = guard->inode};
    return true;
}
