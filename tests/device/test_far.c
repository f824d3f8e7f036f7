/* Far memory in host memory and on disk: copies of streams, also of two at once, and of the host;
 * its account; full and failing disks; names in the folder. On the CPU, or on the device that
 * SIFR_TEST_DEVICE names. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/input.h"
#include "base/output.h"
#include "device/far.h"
#include "gpu.h"
#include "spans.h"
#include "threads.h"

enum { MIB = 1 << 20 };

/* --- the rig -------------------------------------------------------------------------------- */

struct rig {
    struct env env;
    char folder[64];
    struct device *device;
    struct far *far;
    struct stream *in, *out;
};

static void make_folder(char folder[64], const char *parent)
{
    snprintf(folder, 64, "%s/sifr-far-XXXXXX", parent);
    assert_non_null(mkdtemp(folder));
}

static int entries(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;)
        count += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(dir);
    return count;
}

static void rig_open_in(struct rig *rig, const char *parent, enum far_kind kind, size_t bytes)
{
    *rig = (struct rig){.env = testing_env(1)};
    make_folder(rig->folder, parent);
    assert_ok(device_create(&rig->env, test_device(), 0, &rig->device));
    assert_ok(far_create(
        rig->device, &(struct far_config){kind, MEM_OPTIMIZER, "moments", bytes, rig->folder, NULL},
        &rig->far));
    assert_ok(far_stream_create(rig->device, kind, "in", &rig->in));
    assert_ok(far_stream_create(rig->device, kind, "out", &rig->out));
}

static void rig_open(struct rig *rig, enum far_kind kind, size_t bytes)
{
    rig_open_in(rig, "/tmp", kind, bytes);
}

static void rig_close(struct rig *rig)
{
    stream_destroy(rig->out);
    stream_destroy(rig->in);
    far_destroy(rig->far);
    device_destroy(rig->device);
    env_destroy(&rig->env);
    assert_int_equal(rmdir(rig->folder), 0); /* nothing is left */
}

static char *on_device(struct rig *rig, size_t bytes)
{
    char *block;
    assert_ok(device_alloc(rig->device, MEM_SLOTS, "slot", bytes, &block));
    return block;
}

/* The byte at an offset of version `salt`; not periodic in any power of two. */
static unsigned char value(size_t at, unsigned salt)
{
    uint64_t mixed = (at / 8 + 1) * 0x9e3779b97f4a7c15u + salt * 0x632be59bd9b4e019u;
    return (unsigned char)(mixed >> (8 * (at % 8)));
}

static void fill(char *host, size_t at, size_t bytes, unsigned salt)
{
    for (size_t i = 0; i < bytes; i++)
        host[i] = (char)value(at + i, salt);
}

static void check(const char *host, size_t at, size_t bytes, unsigned salt)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)host[i] != value(at + i, salt))
            fail_msg("byte %zu is %d, not %d", at + i, (unsigned char)host[i], value(at + i, salt));
}

static char *host_block(size_t bytes)
{
    char *host = malloc(bytes);
    assert_non_null(host);
    return host;
}

/* Set device memory to the values of far offset `at`, and compare it with them. */
static void set_slot(struct rig *rig, char *slot, size_t at, size_t bytes, unsigned salt)
{
    char *host = host_block(bytes);
    fill(host, at, bytes, salt);
    device_copy(rig->out, slot, host, bytes);
    assert_ok(stream_sync(rig->out));
    free(host);
}

static void check_slot(struct rig *rig, const char *slot, size_t at, size_t bytes, unsigned salt)
{
    char *host = host_block(bytes);
    device_copy(rig->in, host, slot, bytes);
    assert_ok(stream_sync(rig->in));
    check(host, at, bytes, salt);
    free(host);
}

static enum far_kind kind_of(void **state)
{
    return **(enum far_kind **)state;
}

/* --- copies --------------------------------------------------------------------------------- */

static void test_zeroed(void **state)
{
    struct rig rig;
    size_t bytes = 5 * MIB + 3 * FAR_ALIGN;
    rig_open(&rig, kind_of(state), bytes);
    char *slot = on_device(&rig, bytes), *host = host_block(bytes);
    set_slot(&rig, slot, 0, bytes, 1);
    far_read(rig.in, rig.far, 0, slot, bytes);
    device_copy(rig.in, host, slot, bytes);
    assert_ok(stream_sync(rig.in));
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(host[i], 0);
    memset(host, 1, bytes);
    assert_ok(far_get(rig.far, 1, host, bytes - 1));
    for (size_t i = 0; i < bytes - 1; i++)
        assert_int_equal(host[i], 0);
    free(host);
    device_free(rig.device, slot);
    rig_close(&rig);
}

/* Lengths around those of a request and of all bounce buffers, at addresses that are aligned to
 * nothing, to 64 bytes and to a block. */
static void test_there_and_back(void **state)
{
    static const size_t sizes[] = {FAR_ALIGN, MIB - FAR_ALIGN, MIB, MIB + FAR_ALIGN,
                                   19 * MIB + 7 * FAR_ALIGN};
    static const size_t shifts[] = {0, 4, 64, 4096 - 64};
    struct rig rig;
    size_t most = 20 * MIB, at = 3 * FAR_ALIGN;
    unsigned salt = 0;
    rig_open(&rig, kind_of(state), at + most);
    char *memory = on_device(&rig, most + 2 * 4096);
    char *first = memory + (4096 - (uintptr_t)memory % 4096) % 4096;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t a = 0; a < sizeof shifts / sizeof *shifts; a++) {
            char *slot = first + shifts[a];
            set_slot(&rig, slot, at, sizes[s], ++salt);
            far_write(rig.out, rig.far, at, slot, sizes[s]);
            assert_ok(stream_sync(rig.out));
            set_slot(&rig, slot, at, sizes[s], 999);
            far_read(rig.in, rig.far, at, slot, sizes[s]);
            check_slot(&rig, slot, at, sizes[s], salt);
        }
    device_free(rig.device, memory);
    rig_close(&rig);
}

/* As the store uses it: pieces pass through a ring of slots, filled on one stream, changed on the
 * compute stream and written back on a third, and each slot waits through events. Rounds follow
 * without a pause, so a piece must be back before it is read again. */
static void test_ring_of_slots(void **state)
{
    enum { SLOTS = 3, PIECES = 14, ROUNDS = 5, COUNT = 70 * FAR_ALIGN };
    struct rig rig;
    struct stream *compute;
    const size_t piece = COUNT * sizeof(float);
    struct event *filled[SLOTS], *changed[SLOTS], *written[SLOTS];
    char *slots[SLOTS];
    float *host = (float *)(void *)host_block(piece);
    rig_open(&rig, kind_of(state), PIECES * piece);
    assert_ok(stream_create(rig.device, "compute", &compute));
    float *ones = (float *)(void *)on_device(&rig, piece);
    for (int i = 0; i < COUNT; i++)
        host[i] = 1;
    device_copy(compute, ones, host, piece);
    assert_ok(stream_sync(compute));
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = on_device(&rig, piece);
        assert_ok(event_create(rig.device, &filled[i]));
        assert_ok(event_create(rig.device, &changed[i]));
        assert_ok(event_create(rig.device, &written[i]));
    }
    for (int p = 0; p < PIECES; p++) {
        for (int i = 0; i < COUNT; i++)
            host[i] = (float)(p * 1000 + i % 1000);
        assert_ok(far_put(rig.far, (size_t)p * piece, host, piece));
    }
    for (int k = 0; k < ROUNDS * PIECES; k++) {
        int slot = k % SLOTS;
        size_t from = (size_t)(k % PIECES) * piece;
        stream_wait(rig.in, written[slot]);
        far_read(rig.in, rig.far, from, slots[slot], piece);
        event_record(filled[slot], rig.in);
        stream_wait(compute, filled[slot]);
        device_accumulate(compute, slots[slot], DTYPE_F32, ones, DTYPE_F32, COUNT);
        event_record(changed[slot], compute);
        stream_wait(rig.out, changed[slot]);
        far_write(rig.out, rig.far, from, slots[slot], piece);
        event_record(written[slot], rig.out);
    }
    assert_ok(stream_sync(rig.in));
    assert_ok(stream_sync(compute));
    assert_ok(stream_sync(rig.out));
    for (int p = 0; p < PIECES; p++) {
        assert_ok(far_get(rig.far, (size_t)p * piece, host, piece));
        for (int i = 0; i < COUNT; i++)
            if (host[i] != (float)(p * 1000 + i % 1000 + ROUNDS))
                fail_msg("element %d of piece %d is %g after %d rounds", i, p, host[i], ROUNDS);
    }
    for (int i = 0; i < SLOTS; i++) {
        event_destroy(filled[i]);
        event_destroy(changed[i]);
        event_destroy(written[i]);
        device_free(rig.device, slots[i]);
    }
    device_free(rig.device, ones);
    stream_destroy(compute);
    free(host);
    rig_close(&rig);
}

/* Writes of one stream and reads of another at the same time, on different ranges. */
static void test_both_ways_at_once(void **state)
{
    enum { PIECES = 6 };
    struct rig rig;
    const size_t piece = 9 * MIB;
    rig_open(&rig, kind_of(state), 2 * PIECES * piece);
    char *to = on_device(&rig, PIECES * piece), *from = on_device(&rig, piece);
    char *host = host_block(piece);
    for (size_t p = 0; p < PIECES; p++) {
        fill(host, p * piece, piece, 1);
        assert_ok(far_put(rig.far, p * piece, host, piece));
    }
    set_slot(&rig, from, 0, piece, 2);
    for (size_t p = 0; p < PIECES; p++) {
        far_read(rig.in, rig.far, p * piece, to + p * piece, piece);
        far_write(rig.out, rig.far, (PIECES + p) * piece, from, piece);
    }
    assert_ok(stream_sync(rig.out));
    check_slot(&rig, to, 0, PIECES * piece, 1);
    for (size_t p = 0; p < PIECES; p++) {
        assert_ok(far_get(rig.far, (PIECES + p) * piece, host, piece));
        check(host, 0, piece, 2);
    }
    free(host);
    device_free(rig.device, from);
    device_free(rig.device, to);
    rig_close(&rig);
}

/* --- the host ------------------------------------------------------------------------------- */

/* Any range; what is outside it stays. */
static void test_get_and_put(void **state)
{
    static const struct {
        size_t at, bytes;
    } ranges[] = {{0, 1}, {4095, 2}, {5, 4091}, {100, 3 * MIB}, {MIB - 1, MIB + 2}, {7, 0}};
    struct rig rig;
    const size_t bytes = 12 * MIB;
    char *now = host_block(bytes), *host = host_block(bytes + 3);
    rig_open(&rig, kind_of(state), bytes);
    fill(now, 0, bytes, 3);
    assert_ok(far_put(rig.far, 0, now, bytes));
    for (unsigned i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        size_t at = ranges[i].at, count = ranges[i].bytes;
        fill(now + at, at, count, 10 + i);
        assert_ok(far_put(rig.far, at, now + at, count));
        memset(host, 0, bytes);
        assert_ok(far_get(rig.far, 0, host, bytes));
        assert_memory_equal(host, now, bytes);
        host[3 + count] = 77;
        assert_ok(far_get(rig.far, at, host + 3, count));
        assert_memory_equal(host + 3, now + at, count);
        assert_int_equal(host[3 + count], 77);
    }
    free(host);
    free(now);
    rig_close(&rig);
}

struct putter {
    struct far *far;
    size_t at, bytes;
    unsigned salt;
};

static void *put_parts(void *arg)
{
    struct putter *p = arg;
    char part[700];
    for (size_t done = 0; done < p->bytes; done += sizeof part) {
        size_t bytes = p->bytes - done < sizeof part ? p->bytes - done : sizeof part;
        fill(part, p->at + done, bytes, p->salt);
        assert_ok(far_put(p->far, p->at + done, part, bytes));
        assert_ok(far_get(p->far, p->at + done, part, bytes));
        check(part, p->at + done, bytes, p->salt);
    }
    return NULL;
}

/* Threads that put adjacent ranges within a block do not lose each other's bytes, while streams use
 * other ranges and all bounce buffers. */
static void test_threads(void **state)
{
    enum { THREADS = 20, BYTES = 5000 };
    struct rig rig;
    struct putter jobs[THREADS];
    char host[BYTES];
    const size_t streamed = 24 * MIB, at = 2 * streamed;
    rig_open(&rig, kind_of(state), at + THREADS * BYTES);
    char *a = on_device(&rig, streamed), *b = on_device(&rig, streamed);
    set_slot(&rig, a, 0, streamed, 4);
    far_write(rig.out, rig.far, 0, a, streamed);
    far_read(rig.in, rig.far, streamed, b, streamed);
    for (int i = 0; i < THREADS; i++)
        jobs[i] = (struct putter){rig.far, at + (size_t)i * BYTES, BYTES, (unsigned)i};
    threads_run(put_parts, jobs, THREADS, sizeof *jobs);
    for (int i = 0; i < THREADS; i++) {
        assert_ok(far_get(rig.far, jobs[i].at, host, BYTES));
        check(host, jobs[i].at, BYTES, (unsigned)i);
    }
    assert_ok(stream_sync(rig.out));
    far_read(rig.in, rig.far, 0, b, streamed);
    check_slot(&rig, b, 0, streamed, 4);
    device_free(rig.device, b);
    device_free(rig.device, a);
    rig_close(&rig);
}

/* --- the account ---------------------------------------------------------------------------- */

/* Counted where it is, rounded up to blocks; copies allocate nothing. */
static void test_account(void **state)
{
    struct rig rig;
    enum far_kind kind = kind_of(state);
    size_t bytes = 3 * MIB;
    rig_open(&rig, kind, bytes - 1);
    char *slot = on_device(&rig, bytes), byte = 0;
    size_t disk = mem_sums(rig.env.mem, MEM_DISK, false).bytes[MEM_OPTIMIZER];
    size_t host = mem_sums(rig.env.mem, MEM_HOST, false).bytes[MEM_OPTIMIZER];
    size_t bounce = mem_bytes(rig.env.mem, MEM_COMM);
    assert_int_equal(disk, kind == FAR_DISK ? bytes : 0);
    assert_int_equal(host, kind == FAR_HOST ? bytes : 0);
    assert_true((bounce > 0) == (kind == FAR_DISK));
    assert_true((far_address(rig.far) != NULL) == (kind == FAR_HOST));
    int64_t before = mem_allocation_count(rig.env.mem);
    far_write(rig.out, rig.far, 0, slot, bytes);
    assert_ok(stream_sync(rig.out));
    far_read(rig.in, rig.far, 0, slot, bytes);
    assert_ok(stream_sync(rig.in));
    assert_ok(far_put(rig.far, 5, &byte, 1));
    assert_ok(far_get(rig.far, 5, &byte, 1));
    assert_int_equal(mem_allocation_count(rig.env.mem), before);
    struct far *second; /* shares the bounce buffers */
    assert_ok(far_create(
        rig.device, &(struct far_config){kind, MEM_GRADS, "sums", 1, rig.folder, NULL}, &second));
    assert_int_equal(mem_bytes(rig.env.mem, MEM_COMM), bounce);
    far_destroy(rig.far);
    rig.far = second;
    assert_ok(far_put(rig.far, 0, &byte, 1));
    assert_int_equal(
        mem_sums(rig.env.mem, kind == FAR_DISK ? MEM_DISK : MEM_HOST, false).bytes[MEM_OPTIMIZER],
        0);
    device_free(rig.device, slot);
    rig_close(&rig);
}

static char shared_folder[64];

static enum status build(struct env *env, const char *backend)
{
    enum status st;
    struct device *device;
    struct far *host = NULL, *disk = NULL;
    TRY(device_create(env, backend, 0, &device));
    TRY_OR(undo, far_create(device, &(struct far_config){FAR_HOST, MEM_GRADS, "a", 9, NULL, NULL},
                            &host));
    TRY_OR(undo, far_create(device,
                            &(struct far_config){FAR_DISK, MEM_GRADS, "b", 9, shared_folder, NULL},
                            &disk));
undo:
    far_destroy(disk);
    far_destroy(host);
    device_destroy(device);
    return st;
}

static void test_failing_allocations(void **state)
{
    (void)state;
    make_folder(shared_folder, "/tmp");
    assert_true(testing_fail_each(build, test_device()) >= 10);
    assert_true(testing_fail_each(build, "dry-gpu") >= 8);
    assert_int_equal(rmdir(shared_folder), 0);
}

/* --- the disk ------------------------------------------------------------------------------- */

/* While the file is open, the folder shows no name, and the space is taken. */
static void test_no_name(void **state)
{
    (void)state;
    struct rig rig;
    struct stat info;
    bool found = false;
    const size_t bytes = 8 * MIB;
    rig_open(&rig, FAR_DISK, bytes);
    assert_int_equal(entries(rig.folder), 0);
    for (int fd = 3; fd < 256; fd++) {
        if (fstat(fd, &info) != 0 || info.st_nlink != 0 || (size_t)info.st_size != bytes)
            continue;
        found = true;
        assert_true((size_t)info.st_blocks * 512 >= bytes);
        assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    assert_true(found);
    rig_close(&rig);
}

/* A file system without O_DIRECT (before Linux 6.6, at least). */
static void test_memory_disk(void **state)
{
    (void)state;
    struct rig rig;
    const size_t bytes = 5 * MIB;
    if (access("/dev/shm", W_OK) != 0)
        testing_skip("no /dev/shm here");
    rig_open_in(&rig, "/dev/shm", FAR_DISK, bytes);
    char *slot = on_device(&rig, bytes);
    set_slot(&rig, slot, 0, bytes, 1);
    far_write(rig.out, rig.far, 0, slot, bytes);
    assert_ok(stream_sync(rig.out));
    set_slot(&rig, slot, 0, bytes, 2);
    far_read(rig.in, rig.far, 0, slot, bytes);
    check_slot(&rig, slot, 0, bytes, 1);
    device_free(rig.device, slot);
    rig_close(&rig);
}

/* A file system without O_TMPFILE: a name that is gone at once. */
static void test_without_tmpfile(void **state)
{
    (void)state;
    struct rig rig;
    struct output_faults faults = {.error = EOPNOTSUPP};
    struct far *far;
    char byte = 7;
    rig_open(&rig, FAR_DISK, MIB);
    atomic_store(&faults.left, 1); /* the first call opens the file */
    rig.env.faults = &faults;
    struct far_config config = {FAR_DISK, MEM_GRADS, "sums", MIB, rig.folder, NULL};
    assert_ok(far_create(rig.device, &config, &far));
    assert_true(atomic_load(&faults.left) <= 0);
    assert_int_equal(entries(rig.folder), 0);
    assert_ok(far_put(far, 99, &byte, 1));
    byte = 0;
    assert_ok(far_get(far, 99, &byte, 1));
    assert_int_equal(byte, 7);
    far_destroy(far);
    rig_close(&rig);
}

/* Create far memory that must be refused, with all of the words in the message; nothing is left. */
static void refuse(struct rig *rig, const struct far_config *config, const char *const *words)
{
    struct far *far;
    struct env quiet = testing_env(1);
    struct device *device;
    quiet.faults = rig->env.faults;
    assert_ok(device_create(&quiet, test_device(), 0, &device));
    assert_int_equal(far_create(device, config, &far), STATUS_IO);
    for (; *words != NULL; words++)
        if (strstr(log_first_error(quiet.log), *words) == NULL)
            fail_msg("'%s' is not in: %s", *words, log_first_error(quiet.log));
    device_destroy(device);
    assert_int_equal(mem_total(quiet.mem), 0);
    assert_int_equal(mem_sums(quiet.mem, MEM_DISK, false).total_bytes, 0);
    env_destroy(&quiet);
    assert_int_equal(entries(rig->folder), 0);
}

static bool little(void *user, const char *path, uint64_t *bytes)
{
    (void)user, (void)path;
    *bytes = 5 * MIB;
    return true;
}

/* A full disk is an error at start-up that says what, where, how much and what to do. */
static void test_full_disk(void **state)
{
    (void)state;
    struct rig rig;
    struct output_faults faults = {.error = ENOSPC};
    rig_open(&rig, FAR_DISK, MIB);
    struct far_config config = {FAR_DISK, MEM_GRADS, "sums", (size_t)1 << 55, rig.folder, NULL};
    refuse(&rig, &config,
           (const char *[]){"grads 'sums'", rig.folder, "32.0 PiB", "is free", "free some space",
                            NULL});
    config.bytes = 6 * MIB;
    faults.free_bytes = little;
    rig.env.faults = &faults;
    refuse(&rig, &config, (const char *[]){"6.0 MiB", "5.0 MiB is free", strerror(ENOSPC), NULL});
    faults.free_bytes = NULL;
    atomic_store(&faults.left, 2); /* open, reserve */
    refuse(&rig, &config, (const char *[]){"cannot reserve 6.0 MiB", strerror(ENOSPC), NULL});
    rig.env.faults = NULL;
    config.folder = "/nowhere/at/all";
    refuse(&rig, &config, (const char *[]){"/nowhere/at/all", strerror(ENOENT), NULL});
    rig_close(&rig);
}

/* Host memory that cannot be had is an error at start-up, too: on a GPU it is pinned. */
static void test_no_host_memory(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct far *far;
    struct far_config config = {FAR_HOST, MEM_OPTIMIZER, "moments", (size_t)1 << 50, NULL, NULL};
    assert_ok(device_create(&env, test_device(), 0, &device));
    size_t before = mem_total(env.mem);
    assert_int_equal(far_create(device, &config, &far), STATUS_MEMORY);
    const char *message = log_first_error(env.log);
    assert_non_null(strstr(message, "1.0 PiB"));
    assert_non_null(strstr(message, "optimizer 'moments'"));
    if (device_memory(device) == MEM_GPU)
        assert_non_null(strstr(message, "cannot pin 1.0 PiB of host memory"));
    assert_int_equal(mem_total(env.mem), before);
    device_destroy(device);
    env_destroy(&env);
}

/* A request that fails: the message says what, where and what to do; the error sticks to the stream
 * and later work on it is skipped; other streams and the host continue. */
static void test_failing_write(void **state)
{
    static const int errors[] = {EIO, ENOSPC};
    static const char *const advice[] = {"check that disk", "free some space"};
    (void)state;
    for (int e = 0; e < 2; e++) {
        struct rig rig;
        struct output_faults faults = {.error = errors[e]};
        const size_t bytes = 12 * MIB;
        rig_open(&rig, FAR_DISK, 2 * bytes);
        char *slot = on_device(&rig, bytes), *host = host_block(bytes);
        set_slot(&rig, slot, 0, bytes, 1);
        atomic_store(&faults.left, 5);
        rig.env.faults = &faults;
        far_write(rig.out, rig.far, 0, slot, bytes);
        assert_int_equal(stream_sync(rig.out), STATUS_IO);
        const char *message = log_first_error(rig.env.log);
        assert_non_null(strstr(message, "optimizer 'moments'"));
        assert_non_null(strstr(message, rig.folder));
        assert_non_null(strstr(message, strerror(errors[e])));
        assert_non_null(strstr(message, advice[e]));
        long long left = atomic_load(&faults.left);
        far_write(rig.out, rig.far, bytes, slot, bytes);
        assert_int_equal(stream_sync(rig.out), STATUS_IO);
        assert_int_equal(atomic_load(&faults.left), left); /* nothing was written */
        far_read(rig.in, rig.far, bytes, slot, bytes);
        assert_ok(stream_sync(rig.in));
        fill(host, 0, bytes, 2);
        assert_ok(far_put(rig.far, 0, host, bytes));
        memset(host, 0, bytes);
        assert_ok(far_get(rig.far, 0, host, bytes));
        check(host, 0, bytes, 2);
        free(host);
        device_free(rig.device, slot);
        rig_close(&rig);
    }
}

static void test_failing_read(void **state)
{
    (void)state;
    struct rig rig;
    struct input_faults faults = {.error = EIO, .times = 1000};
    const size_t bytes = 12 * MIB;
    char byte;
    rig_open(&rig, FAR_DISK, bytes);
    char *slot = on_device(&rig, bytes);
    atomic_store(&faults.left, 4);
    rig.env.input_faults = &faults;
    far_read(rig.in, rig.far, 0, slot, bytes);
    assert_int_equal(stream_sync(rig.in), STATUS_IO);
    assert_non_null(strstr(log_first_error(rig.env.log), "cannot read optimizer 'moments'"));
    assert_non_null(strstr(log_first_error(rig.env.log), rig.folder));
    assert_int_equal(far_get(rig.far, 3, &byte, 1), STATUS_IO);
    assert_int_equal(far_put(rig.far, 3, &byte, 1), STATUS_IO); /* reads the rest of the block */
    rig.env.input_faults = NULL;
    assert_ok(far_get(rig.far, 3, &byte, 1));
    device_free(rig.device, slot);
    rig_close(&rig);
}

/* A short write continues where it stopped, also in the middle of a block. */
static void test_short_write(void **state)
{
    (void)state;
    static const size_t sizes[] = {FAR_ALIGN, 3 * FAR_ALIGN, MIB};
    for (int i = 0; i < 3; i++) {
        struct rig rig;
        struct output_faults faults = {.error = 0};
        rig_open(&rig, FAR_DISK, MIB);
        char *slot = on_device(&rig, MIB);
        set_slot(&rig, slot, 0, sizes[i], 6);
        atomic_store(&faults.left, 1);
        rig.env.faults = &faults;
        far_write(rig.out, rig.far, 0, slot, sizes[i]);
        assert_ok(stream_sync(rig.out));
        assert_true(atomic_load(&faults.left) <= 0);
        set_slot(&rig, slot, 0, sizes[i], 7);
        far_read(rig.in, rig.far, 0, slot, sizes[i]);
        check_slot(&rig, slot, 0, sizes[i], 6);
        device_free(rig.device, slot);
        rig_close(&rig);
    }
}

/* A file system that refuses O_DIRECT only when bytes are transferred. */
static void test_direct_refused_late(void **state)
{
    (void)state;
    struct rig rig;
    struct output_faults writes = {.error = EINVAL};
    struct input_faults reads = {.error = EINVAL, .times = 1};
    rig_open(&rig, FAR_DISK, MIB);
    char *slot = on_device(&rig, MIB);
    set_slot(&rig, slot, 0, MIB, 6);
    atomic_store(&writes.left, 1);
    rig.env.faults = &writes;
    far_write(rig.out, rig.far, 0, slot, MIB);
    assert_ok(stream_sync(rig.out));
    struct far *second; /* still uses O_DIRECT */
    assert_ok(far_create(rig.device,
                         &(struct far_config){FAR_DISK, MEM_GRADS, "sums", MIB, rig.folder, NULL},
                         &second));
    atomic_store(&reads.left, 1);
    rig.env.input_faults = &reads;
    far_read(rig.in, second, 0, slot, MIB);
    far_read(rig.in, rig.far, 0, slot, MIB);
    check_slot(&rig, slot, 0, MIB, 6);
    assert_true(atomic_load(&writes.left) < 0 && atomic_load(&reads.left) < 0);
    rig.env.input_faults = NULL;
    far_destroy(second);
    device_free(rig.device, slot);
    rig_close(&rig);
}

/* --- dry devices ---------------------------------------------------------------------------- */

#define assert_near(a, b) assert_true(fabs((a) - (b)) < 1e-9)

/* The same bytes in the same places as on the real device, no file, and the time of the link or the
 * disk, without taking it from compute. */
static void test_dry(void **state)
{
    (void)state;
    for (int gpu = 0; gpu < 2; gpu++)
        for (enum far_kind kind = FAR_HOST; kind <= FAR_DISK; kind++) {
            struct env env = testing_env(1);
            struct device *device;
            struct far *far;
            struct stream *in, *out, *compute;
            char *slot;
            assert_ok(device_create(&env, gpu ? "dry-gpu" : "dry", 0, &device));
            struct far_config config = {kind, MEM_OPTIMIZER, "moments", 64 * MIB, "/nowhere", NULL};
            assert_ok(far_create(device, &config, &far));
            assert_int_equal(mem_sums(env.mem, kind == FAR_DISK ? MEM_DISK : MEM_HOST, false)
                                 .bytes[MEM_OPTIMIZER],
                             64 * MIB);
            assert_int_equal(mem_sums(env.mem, MEM_GPU, false).total_bytes, 0);
            assert_ok(device_alloc(device, MEM_SLOTS, "slot", 32 * MIB, &slot));
            assert_ok(far_stream_create(device, kind, "in", &in));
            assert_ok(far_stream_create(device, kind, "out", &out));
            assert_ok(stream_create(device, "compute", &compute));
            assert_true(stream_is_worker(in) == !(gpu && kind == FAR_HOST));
            device_keep_time(device,
                             &(struct device_pace){.copy_bytes_per_second = 64.0 * MIB,
                                                   .theft = 1,
                                                   .link_bytes_per_second = 16.0 * MIB,
                                                   .disk_read_bytes_per_second = 8.0 * MIB,
                                                   .disk_write_bytes_per_second = 4.0 * MIB});
            far_read(in, far, 0, slot, 32 * MIB);
            far_write(out, far, 32 * MIB, slot, 32 * MIB);
            double host = gpu ? 2.0 : 1.0;
            assert_near(stream_spent(in), kind == FAR_DISK ? 4.0 : host);
            assert_near(stream_spent(out), kind == FAR_DISK ? 8.0 : host);
            stream_spend(compute, 1.0);
            bool stolen = kind == FAR_HOST && !gpu; /* a core copies */
            assert_near(stream_spent(compute), stolen ? 3.0 : 1.0);
            assert_ok(far_get(far, 1, NULL, 5));
            assert_ok(far_put(far, 1, NULL, 5));
            stream_destroy(compute);
            stream_destroy(out);
            stream_destroy(in);
            device_free(device, slot);
            far_destroy(far);
            device_destroy(device);
            env_destroy(&env);
        }
}

/* The dry devices count as the real one does. */
static void test_dry_counts_the_same(void **state)
{
    struct rig rig;
    struct env env = testing_env(1);
    struct device *device;
    struct far *far;
    enum far_kind kind = kind_of(state);
    rig_open(&rig, kind, 3 * MIB + 1);
    assert_ok(device_create(&env, test_on_cpu() ? "dry" : "dry-gpu", 0, &device));
    struct far_config config = {kind, MEM_OPTIMIZER, "moments", 3 * MIB + 1, "/nowhere", NULL};
    assert_ok(far_create(device, &config, &far));
    for (int l = 0; l < MEM_LOCATION_COUNT; l++) {
        struct mem_sums real = mem_sums(rig.env.mem, l, false), dry = mem_sums(env.mem, l, false);
        assert_memory_equal(real.bytes, dry.bytes, MEM_OTHER * sizeof *dry.bytes);
    }
    far_destroy(far);
    device_destroy(device);
    env_destroy(&env);
    rig_close(&rig);
}

/* Each copy is a span on the lane of its direction, with its bytes. */
static void test_copies_are_traced(void **state)
{
    struct rig rig;
    enum far_kind kind = kind_of(state);
    rig_open(&rig, kind, 3 * MIB);
    char *slot = on_device(&rig, 2 * MIB), *other = on_device(&rig, MIB);
    assert_ok(trace_create(&rig.env, 16, &rig.env.trace));
    assert_ok(device_spans_create(rig.device, 16));
    far_write(rig.out, rig.far, 0, slot, MIB); /* before the window */
    device_spans_open(rig.device);
    trace_open(rig.env.trace, true);
    far_write(rig.out, rig.far, MIB, slot, 2 * MIB);
    assert_ok(stream_sync(rig.out));
    far_read(rig.in, rig.far, 0, other, MIB);
    assert_ok(stream_sync(rig.in));
    device_spans_close(rig.device);
    json_t *events = spans_written(rig.env.trace);
    struct span_times out = spans_find(events, "out", "moments");
    struct span_times in = spans_find(events, "in", "moments");
    assert_int_equal(out.count, 1);
    assert_int_equal(out.bytes, 2 * MIB);
    assert_int_equal(in.count, 1);
    assert_int_equal(in.bytes, MIB);
    assert_true(out.start < out.end && out.end <= in.start + 1e-6 && in.start < in.end);
    json_decref(events);
    device_free(rig.device, slot);
    device_free(rig.device, other);
    trace_destroy(rig.env.trace);
    rig_close(&rig);
}

int main(void)
{
    static enum far_kind kinds[] = {FAR_HOST, FAR_DISK};
#define BOTH(test) \
    cmocka_unit_test_prestate(test, &kinds[0]), cmocka_unit_test_prestate(test, &kinds[1])
    const struct CMUnitTest tests[] = {
        BOTH(test_zeroed),
        BOTH(test_there_and_back),
        BOTH(test_ring_of_slots),
        BOTH(test_both_ways_at_once),
        BOTH(test_get_and_put),
        BOTH(test_threads),
        BOTH(test_account),
        BOTH(test_dry_counts_the_same),
        BOTH(test_copies_are_traced),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_no_name),
        cmocka_unit_test(test_memory_disk),
        cmocka_unit_test(test_without_tmpfile),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_no_host_memory),
        cmocka_unit_test(test_failing_write),
        cmocka_unit_test(test_failing_read),
        cmocka_unit_test(test_short_write),
        cmocka_unit_test(test_direct_refused_late),
        cmocka_unit_test(test_dry),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
