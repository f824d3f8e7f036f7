/* After its first step a run allocates nothing. This file replaces malloc and related functions of
 * the C library and counts their calls in every thread, through steps, evaluations, text samples
 * and the records they write. (Sanitizers replace the same functions; with them the test only
 * trains.) */
#include "run_rig.h"
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNTING (!TESTING_SANITIZED)

static atomic_bool counting;
static atomic_int calls;

#if COUNTING
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void note(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&calls, 1);
}

void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note();
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    note();
    return __libc_realloc(block, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    note();
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **block, size_t alignment, size_t bytes)
{
    note();
    *block = __libc_memalign(alignment, bytes);
    return *block != NULL ? 0 : ENOMEM;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    note();
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}
#endif

static void on_step(void *user, const struct trainer_step *step)
{
    (void)user;
    if (step->step == 1)
        atomic_store(&counting, true);
    if (step->step == step->steps)
        atomic_store(&counting, false);
}

static void expect_no_allocation(const char *settings)
{
    struct run_rig rig;
    struct trainer_summary summary;
    const struct trainer_callbacks callbacks = {.step = on_step};
    rig_open(&rig);
    rig_config(&rig, settings);
    atomic_store(&calls, 0);
    assert_int_equal(rig_train(&rig, "run", false, &callbacks, &summary), STATUS_OK);
    assert_false(atomic_load(&counting));
    assert_int_equal(atomic_load(&calls), 0);
    rig_close(&rig);
}

/* The counter must see allocations. */
static void test_allocations_are_counted(void **state)
{
    (void)state;
    atomic_store(&calls, 0);
    atomic_store(&counting, true);
    void *volatile block = malloc(100);
    void *volatile page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    atomic_store(&counting, false);
    free(block);
    munmap(page, 4096);
    assert_int_equal(atomic_load(&calls), 2 * COUNTING);
}

static void test_steps_allocate_nothing(void **state)
{
    (void)state;
    expect_no_allocation("train.steps=30 run.threads=1");
    expect_no_allocation("train.steps=30 run.threads=2 model.arch=gpt2 model.kv_heads=4");
    expect_no_allocation("train.steps=30 run.threads=2 engine.recompute=full");
}

static void test_evaluation_and_samples_allocate_nothing(void **state)
{
    (void)state;
    expect_no_allocation(
        "train.steps=150 run.threads=2 engine.recompute=selective train.eval_every=4 "
        "train.sample_every=5 train.sample_tokens=16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations_are_counted),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_evaluation_and_samples_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
