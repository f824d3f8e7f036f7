/* What every back end must do: each call with every type and awkward sizes, in place and not, on
 * inline and worker streams, in groups, on two communicators at once, under random delays. Bytes
 * are counted exactly. Sums have the bits of a sequential sum in rank order; where the library adds
 * (fast mode), they are as accurate as that. */
#include "comm/comm_impl.h"
#include <math.h>
#include "comm/comm_rig.h"

static const int64_t counts[] = {0, 1, 7, 64, 65, 1001};
enum { COUNTS = sizeof counts / sizeof counts[0], MOST = 1001 };

/* Byte i of the message from rank `from` to rank `to`. */
static unsigned char pattern(int from, int to, size_t i)
{
    return (unsigned char)(31 * from + 17 * to + (int)(i % 251) + 1);
}

/* Memory of the test itself, not counted: cases check that calls do not allocate. */
static void *borrow(size_t bytes)
{
    void *block = malloc(bytes + 1);
    assert_non_null(block);
    return block;
}

static void fill(struct member *m, void *data, size_t bytes, int from, int to)
{
    unsigned char *host = borrow(bytes);
    for (size_t i = 0; i < bytes; i++)
        host[i] = pattern(from, to, i);
    put(m, data, host, bytes);
    free(host);
}

static bool holds(struct member *m, const void *data, size_t bytes, int from, int to)
{
    unsigned char *host = borrow(bytes);
    size_t same = 0;
    get(m, host, data, bytes);
    while (same < bytes && host[same] == pattern(from, to, same))
        same++;
    free(host);
    return same == bytes;
}

static struct stream *nth_stream(struct member *m, int n)
{
    return n % 2 == 0 ? m->direct : m->worker;
}

/* --- moving data ---------------------------------------------------------------------------- */

static void gather_once(struct member *m, struct comm *comm, int64_t count, enum dtype type,
                        bool in_place, struct stream *stream)
{
    int rank = comm_rank(comm), size = comm_size(comm);
    size_t part = (size_t)count * dtype_bytes(type);
    char *full = take(m, (size_t)size * part), *shard = take(m, part);
    char *mine = in_place ? full + (size_t)rank * part : shard;
    fill(m, mine, part, rank, 0);
    comm_all_gather(comm, mine, full, count, type, stream);
    EXPECT(m, stream_sync(stream) == STATUS_OK);
    for (int r = 0; r < size; r++)
        EXPECT(m, holds(m, full + (size_t)r * part, part, r, 0));
    give(m, full);
    give(m, shard);
}

static void case_all_gather(struct member *m)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        for (int c = 0; c < COUNTS; c++)
            gather_once(m, m->comm, counts[c], (enum dtype)t, (t + c) % 2,
                        nth_stream(m, t + c / 2));
}

static void case_all_to_all(struct member *m)
{
    for (int t = 0; t < DTYPE_COUNT; t++) {
        for (int c = 0; c < COUNTS; c++) {
            size_t part = (size_t)counts[c] * dtype_bytes((enum dtype)t);
            char *out = take(m, (size_t)m->size * part), *in = take(m, (size_t)m->size * part);
            for (int r = 0; r < m->size; r++)
                fill(m, out + (size_t)r * part, part, m->rank, r);
            comm_all_to_all(m->comm, out, in, counts[c], (enum dtype)t, nth_stream(m, t + c));
            EXPECT(m, stream_sync(nth_stream(m, t + c)) == STATUS_OK);
            for (int r = 0; r < m->size; r++)
                EXPECT(m, holds(m, in + (size_t)r * part, part, r, m->rank));
            give(m, out);
            give(m, in);
        }
    }
}

/* Elements that `from` sends to `to`: some pairs send nothing, some in one direction only. */
static int64_t uneven(int from, int to)
{
    return (from * 5 + to * 3) % 7 < 2 ? 0 : (from * 5 + to * 3) % 7 * 300 + to;
}

static void case_all_to_all_v(struct member *m)
{
    enum { GAP = 3, ROOM = MOST_RANKS * 2000 };
    int64_t out_counts[MOST_RANKS], out_at[MOST_RANKS], in_counts[MOST_RANKS], in_at[MOST_RANKS];
    int64_t out_end = 0, in_end = 0;
    float gap[GAP];
    float *out = take(m, ROOM * sizeof *out), *in = take(m, ROOM * sizeof *in);
    for (int r = 0; r < m->size; r++) {
        out_counts[r] = uneven(m->rank, r);
        in_counts[r] = uneven(r, m->rank);
        out_at[r] = out_end;
        in_at[r] = in_end;
        fill(m, out + out_at[r], (size_t)out_counts[r] * 4, m->rank, r);
        out_end += out_counts[r] + GAP;
        in_end += in_counts[r] + GAP;
    }
    comm_all_to_all_v(m->comm, out, in, &(struct comm_parts){out_counts, out_at, in_counts, in_at},
                      DTYPE_F32, m->worker);
    EXPECT(m, stream_sync(m->worker) == STATUS_OK);
    for (int r = 0; r < m->size; r++) {
        EXPECT(m, holds(m, in + in_at[r], (size_t)in_counts[r] * 4, r, m->rank));
        get(m, gap, in + in_at[r] + in_counts[r], sizeof gap);
        for (int i = 0; i < GAP; i++)
            EXPECT(m, gap[i] == 0);
    }
    give(m, out);
    give(m, in);
}

static void case_broadcast(struct member *m)
{
    char *data = take(m, MOST * 8);
    for (int root = 0; root < m->size; root++) {
        for (int c = 0; c < COUNTS; c++) {
            size_t bytes = (size_t)counts[c] * 8;
            fill(m, data, bytes, m->rank == root ? root : 100, 0);
            comm_broadcast(m->comm, data, counts[c], DTYPE_I64, root, nth_stream(m, c));
            EXPECT(m, stream_sync(nth_stream(m, c)) == STATUS_OK);
            EXPECT(m, holds(m, data, bytes, root, 0));
        }
    }
    give(m, data);
}

/* Every ordered pair of ranks. */
static void case_send_recv(struct member *m)
{
    char *out = take(m, MOST * 2), *in = take(m, MOST * 2);
    for (int c = 0; c < COUNTS; c++) {
        for (int a = 0; a < m->size; a++) {
            for (int b = 0; b < m->size; b++) {
                size_t bytes = (size_t)counts[c] * 2;
                if (a == b)
                    continue;
                if (m->rank == a) {
                    fill(m, out, bytes, a, b);
                    comm_send(m->comm, out, counts[c], DTYPE_BF16, b, m->worker);
                    EXPECT(m, stream_sync(m->worker) == STATUS_OK);
                } else if (m->rank == b) {
                    comm_recv(m->comm, in, counts[c], DTYPE_BF16, a, m->direct);
                    EXPECT(m, holds(m, in, bytes, a, b));
                }
            }
        }
    }
    give(m, out);
    give(m, in);
}

static void case_host(struct member *m)
{
    int32_t mine[3] = {m->rank, 10 * m->rank, 7}, all[3 * MOST_RANKS];
    int nothing;
    EXPECT(m, comm_exchange(m->comm, mine, sizeof mine, all) == STATUS_OK);
    for (int r = 0; r < m->size; r++)
        EXPECT(m, all[3 * r] == r && all[3 * r + 1] == 10 * r && all[3 * r + 2] == 7);
    EXPECT(m, comm_exchange(m->comm, NULL, 0, &nothing) == STATUS_OK);
    for (int late = 0; late < m->size; late++) { /* no rank passes before the last has arrived */
        double start = clock_seconds(), came[MOST_RANKS];
        if (m->rank == late)
            nap(0.02);
        double mine_at = clock_seconds();
        EXPECT(m, comm_barrier(m->comm) == STATUS_OK);
        double passed = clock_seconds();
        EXPECT(m, comm_exchange(m->comm, &mine_at, sizeof mine_at, came) == STATUS_OK);
        for (int r = 0; r < m->size; r++)
            EXPECT(m, passed >= came[r]);
        EXPECT(m, passed - start < 30);
    }
}

/* An exchange on the host runs after the calls that were enqueued before it. */
static void case_host_after_stream(struct member *m)
{
    char *data = take(m, 1 << 20), all[MOST_RANKS];
    for (int i = 0; i < 5; i++) {
        char mine = (char)(m->rank + i);
        comm_broadcast(m->comm, data, 1 << 20, DTYPE_U8, i % m->size, m->worker);
        EXPECT(m, comm_exchange(m->comm, &mine, 1, all) == STATUS_OK);
        for (int r = 0; r < m->size; r++)
            EXPECT(m, all[r] == (char)(r + i));
    }
    give(m, data);
}

static void case_large(struct member *m)
{
    if (m->size > 3)
        return;
    gather_once(m, m->comm, (3 << 20) + 77, DTYPE_F32, false, m->worker);
    if (m->size == 1 || strcmp(comm_backend_name(m->comm), "mpi") != 0)
        return;
    size_t bytes = ((size_t)65 << 20) + 4097; /* several blocks and a remainder */
    char *data = take(m, bytes);
    for (int i = 0; i < 2; i++) {
        fill(m, data, bytes, m->rank == i ? i : 99, 0);
        comm_broadcast(m->comm, data, (int64_t)bytes, DTYPE_U8, i, m->worker);
        EXPECT(m, stream_sync(m->worker) == STATUS_OK);
        EXPECT(m, holds(m, data, bytes, i, 0));
    }
    give(m, data);
}

/* --- sums ----------------------------------------------------------------------------------- */

/* Element i that `rank` contributes. Magnitudes differ so much that the order of a sum matters. */
static double value(int rank, int64_t i, enum dtype type)
{
    struct rng rng = rng_stream(5, "contributions");
    uint64_t index = (uint64_t)i * MOST_RANKS + (uint64_t)rank;
    double spread = type == DTYPE_F16 ? 6 : 20;
    double exponent = (double)(int)(spread * rng_uniform(rng, 2 * index)) - spread / 2;
    double number = rng_normal(rng, 2 * index + 1);
    for (; exponent > 0; exponent--)
        number *= 2;
    for (; exponent < 0; exponent++)
        number /= 2;
    return i % 37 == 0 ? -0.0 : number;
}

static void contribution(void *data, enum dtype type, int rank, int64_t first, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double v = value(rank, first + i, type);
        dtype_convert((char *)data + (size_t)i * dtype_bytes(type), type, &v, DTYPE_F64, 1);
    }
}

/* The same, in device memory. */
static void contribute(struct member *m, void *data, enum dtype type, int64_t first, int64_t count)
{
    size_t bytes = (size_t)count * dtype_bytes(type);
    void *host = borrow(bytes);
    contribution(host, type, m->rank, first, count);
    put(m, data, host, bytes);
    free(host);
}

/* The definition: added in rank order in fp32 (fp64), rounded once. */
static void expected_sum(void *out, enum dtype type, int size, int64_t i)
{
    unsigned char part[8];
    float narrow = 0, f;
    double wide = 0, d;
    for (int r = 0; r < size; r++) {
        contribution(part, type, r, i, 1);
        dtype_convert(&f, DTYPE_F32, part, type, 1);
        dtype_convert(&d, DTYPE_F64, part, type, 1);
        narrow = r == 0 ? f : narrow + f;
        wide = r == 0 ? d : wide + d;
    }
    if (type == DTYPE_F64)
        memcpy(out, &wide, sizeof wide);
    else
        dtype_convert(out, type, &narrow, DTYPE_F32, 1);
}

/* For any order of summation: each addition may lose half a unit in the last place of the sum of
 * absolute values. */
static bool is_near(const void *element, enum dtype type, int size, int64_t i)
{
    double exact = 0, most = 0, got;
    dtype_convert(&got, DTYPE_F64, element, type, 1);
    for (int r = 0; r < size; r++) {
        unsigned char part[8];
        double d;
        contribution(part, type, r, i, 1);
        dtype_convert(&d, DTYPE_F64, part, type, 1);
        exact += d;
        most += fabs(d);
    }
    return fabs(got - exact) <= size * most * (type == DTYPE_F64 ? 0x1p-52 : 0x1p-24);
}

/* The number of elements whose bits differ from the sum in rank order; -1: an element is wrong. */
static int64_t count_other_bits(struct member *m, const void *data, enum dtype type, int64_t first,
                                int64_t count)
{
    size_t element = dtype_bytes(type);
    unsigned char expected[8], *host = borrow((size_t)count * element);
    int64_t differ = 0;
    get(m, host, data, (size_t)count * element);
    for (int64_t i = 0; i < count && differ >= 0; i++) {
        const unsigned char *at = host + (size_t)i * element;
        expected_sum(expected, type, m->size, first + i);
        if (memcmp(at, expected, element) != 0)
            differ = is_near(at, type, m->size, first + i) ? differ + 1 : -1;
    }
    free(host);
    return differ;
}

static bool is_sum(struct member *m, const void *data, enum dtype type, int64_t first,
                   int64_t count)
{
    int64_t differ = count_other_bits(m, data, type, first, count);
    return comm_library_sums(m->comm, type) ? differ >= 0 : differ == 0;
}

static const enum dtype sum_types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
static const int64_t sum_counts[] = {0, 1, 63, 65, 500, 8192 + 130};
enum { SUM_TYPES = 4, SUM_COUNTS = 6 };

static void case_reduce_scatter(struct member *m)
{
    for (int t = 0; t < SUM_TYPES; t++) {
        for (int c = 0; c < SUM_COUNTS; c++) {
            int64_t n = sum_counts[c], total = n * m->size;
            size_t element = dtype_bytes(sum_types[t]);
            char *full = take(m, (size_t)total * element), *shard = take(m, (size_t)n * element);
            char *scratch = take(m, (size_t)total * element);
            contribute(m, full, sum_types[t], 0, total);
            comm_reduce_scatter(m->comm, full, shard, n, sum_types[t], scratch, nth_stream(m, c));
            EXPECT(m, stream_sync(nth_stream(m, c)) == STATUS_OK);
            EXPECT(m, is_sum(m, shard, sum_types[t], n * m->rank, n));
            give(m, full);
            give(m, shard);
            give(m, scratch);
        }
    }
}

static void case_all_reduce(struct member *m)
{
    for (int t = 0; t < SUM_TYPES; t++) {
        for (int c = 0; c < SUM_COUNTS; c++) {
            int64_t n = sum_counts[c];
            size_t element = dtype_bytes(sum_types[t]);
            char *data = take(m, (size_t)n * element);
            char *scratch = take(m, 2 * (size_t)(n + 64 * m->size) * element);
            contribute(m, data, sum_types[t], 0, n);
            comm_all_reduce(m->comm, data, n, sum_types[t], scratch, nth_stream(m, c + 1));
            EXPECT(m, stream_sync(nth_stream(m, c + 1)) == STATUS_OK);
            EXPECT(m, is_sum(m, data, sum_types[t], 0, n));
            give(m, data);
            give(m, scratch);
        }
    }
}

/* The library adds where it may, which is visible with three ranks or more; in place, without
 * scratch. */
static void case_library_sums(struct member *m)
{
    enum { N = 700 };
    bool may = getenv("SIFR_TEST_FAST") != NULL && strcmp(comm_backend_name(m->comm), "nccl") == 0;
    for (int t = 0; t < SUM_TYPES; t++) {
        enum dtype type = sum_types[t];
        bool adds = may && (type == DTYPE_F32 || type == DTYPE_F64);
        size_t element = dtype_bytes(type), total = (size_t)(N * m->size);
        char *full = take(m, total * element), *x = take(m, N * element);
        char *scratch = take(m, 2 * (total + 64 * (size_t)m->size) * element);
        char *mine = full + (size_t)(N * m->rank) * element;
        EXPECT(m, comm_library_sums(m->comm, type) == adds);
        contribute(m, full, type, 0, N * m->size);
        contribute(m, x, type, 0, N);
        comm_reduce_scatter(m->comm, full, mine, N, type, adds ? NULL : scratch, m->worker);
        comm_all_reduce(m->comm, x, N, type, adds ? NULL : scratch, m->worker);
        EXPECT(m, stream_sync(m->worker) == STATUS_OK);
        int64_t scattered = count_other_bits(m, mine, type, N * m->rank, N);
        int64_t reduced = count_other_bits(m, x, type, 0, N);
        EXPECT(m, adds && m->size > 2 ? scattered > 20 && reduced > 20
                                      : scattered == 0 && reduced == 0);
        give(m, full);
        give(m, x);
        give(m, scratch);
    }
}

/* The contributions of these tests do make the order of a sum visible. */
static void case_order_matters(struct member *m)
{
    int differ = 0;
    for (int64_t i = 0; i < 500; i++) {
        float forward, backward = 0;
        expected_sum(&forward, DTYPE_F32, m->size, i);
        for (int r = m->size - 1; r >= 0; r--) {
            float part;
            contribution(&part, DTYPE_F32, r, i, 1);
            backward = r == m->size - 1 ? part : backward + part;
        }
        differ += forward != backward;
    }
    EXPECT(m, m->size < 3 ? differ == 0 : differ > 20);
}

/* --- groups --------------------------------------------------------------------------------- */

static void case_split(struct member *m)
{
    struct comm *odd, *rest, *inner;
    EXPECT(m, comm_split(m->comm, m->rank % 2, "odd and even", &odd) == STATUS_OK);
    EXPECT(m, comm_size(odd) == (m->size + 1 - m->rank % 2) / 2);
    EXPECT(m, comm_rank(odd) == m->rank / 2);
    gather_once(m, odd, 100, DTYPE_F32, true, m->worker);
    EXPECT(m, comm_split(odd, comm_rank(odd) / 2, "pairs", &inner) == STATUS_OK);
    EXPECT(m, comm_size(inner) <= 2);
    gather_once(m, inner, 33, DTYPE_U8, false, m->direct);
    EXPECT(m, comm_split(m->comm, m->rank == 0 ? -1 : 3, "without the first", &rest) == STATUS_OK);
    EXPECT(m, (rest == NULL) == (m->rank == 0));
    if (rest != NULL) {
        EXPECT(m, comm_size(rest) == m->size - 1 && comm_rank(rest) == m->rank - 1);
        gather_once(m, rest, 5, DTYPE_I32, true, m->direct);
    }
    gather_once(m, m->comm, 11, DTYPE_F16, false, m->worker);
    comm_destroy(inner);
    comm_destroy(odd);
    comm_destroy(rest);
}

/* Gathers and sums run concurrently on two streams, under random delays, without disturbing each
 * other. */
static void case_two_streams(struct member *m)
{
    enum { ROUNDS = 12, N = 700 };
    struct comm *gather, *reduce;
    EXPECT(m, comm_dup(m->comm, "gather", &gather) == STATUS_OK);
    EXPECT(m, comm_dup(m->comm, "reduce", &reduce) == STATUS_OK);
    comm_inject_delays(gather, 2e-3, 1);
    comm_inject_delays(reduce, 2e-3, 2);
    char *full = take(m, (size_t)ROUNDS * m->size * N), *shards = take(m, ROUNDS * N);
    float *sums = take(m, ROUNDS * N * sizeof(float));
    float *scratch = take(m, 2 * (size_t)(N + 64 * m->size) * sizeof(float));
    int64_t allocations = mem_allocation_count(m->env.mem);
    for (int i = 0; i < ROUNDS; i++) {
        fill(m, shards + i * N, N, m->rank, i);
        contribute(m, sums + i * N, DTYPE_F32, i * N, N);
        comm_all_gather(gather, shards + i * N, full + (size_t)i * m->size * N, N, DTYPE_U8,
                        m->worker);
        comm_all_reduce(reduce, sums + i * N, N, DTYPE_F32, scratch, m->other);
    }
    EXPECT(m, comm_barrier(m->comm) == STATUS_OK); /* a third communicator at the same time */
    EXPECT(m, stream_sync(m->worker) == STATUS_OK);
    EXPECT(m, stream_sync(m->other) == STATUS_OK);
    EXPECT(m, mem_allocation_count(m->env.mem) == allocations);
    for (int i = 0; i < ROUNDS; i++) {
        for (int r = 0; r < m->size; r++)
            EXPECT(m, holds(m, full + ((size_t)i * m->size + r) * N, N, r, i));
        EXPECT(m, is_sum(m, sums + i * N, DTYPE_F32, i * N, N));
    }
    EXPECT(m, comm_counted(gather, COMM_ALL_GATHER).calls == ROUNDS);
    EXPECT(m, comm_counted(gather, COMM_ALL_GATHER).seconds > 1e-3);
    EXPECT(m, comm_counted(reduce, COMM_ALL_GATHER).calls == 0);
    comm_destroy(gather);
    comm_destroy(reduce);
    give(m, full);
    give(m, shards);
    give(m, sums);
    give(m, scratch);
}

/* Every kind of call in turn, with results checked only at the end: order is kept under delays. */
static void case_delays(struct member *m)
{
    enum { ROUNDS = 6, N = 64 };
    double values[N], *x = take(m, sizeof values);
    double *full = take(m, (size_t)m->size * N * sizeof *full);
    double *scratch = take(m, 2 * (size_t)(N + 64 * m->size) * sizeof *scratch);
    comm_inject_delays(m->comm, 3e-3, 7);
    for (int i = 0; i < N; i++)
        values[i] = (double)(m->rank == 0);
    put(m, x, values, sizeof values);
    for (int round = 0; round < ROUNDS; round++) {
        comm_broadcast(m->comm, x, N, DTYPE_F64, 0, m->worker);                  /* all have v */
        comm_all_gather(m->comm, x, full, N, DTYPE_F64, m->worker);              /* v, v, ... */
        comm_reduce_scatter(m->comm, full, x, N, DTYPE_F64, scratch, m->worker); /* n * v */
        comm_all_reduce(m->comm, x, N, DTYPE_F64, scratch, m->worker);           /* n * n * v */
        if (m->size > 1 && m->rank < 2) { /* rank 0 sends to rank 1 and back */
            if (m->rank == 0)
                comm_send(m->comm, x, N, DTYPE_F64, 1, m->worker);
            comm_recv(m->comm, x, N, DTYPE_F64, 1 - m->rank, m->worker);
            if (m->rank == 1)
                comm_send(m->comm, x, N, DTYPE_F64, 0, m->worker);
        }
    }
    EXPECT(m, stream_sync(m->worker) == STATUS_OK);
    double expected = 1;
    for (int round = 0; round < 2 * ROUNDS; round++)
        expected *= (double)m->size;
    get(m, values, x, sizeof values);
    for (int i = 0; i < N; i++)
        EXPECT(m, values[i] == expected);
    give(m, x);
    give(m, full);
    give(m, scratch);
}

/* Injected delays are inherited by copies and groups: 20 calls wait 40 times, 2.5 ms on average. */
static void case_delayed_children(struct member *m)
{
    enum { CALLS = 20 };
    struct comm *parent, *copy, *group;
    EXPECT(m, comm_dup(m->comm, "parent", &parent) == STATUS_OK);
    comm_inject_delays(parent, 5e-3, 3);
    EXPECT(m, comm_dup(parent, "copy", &copy) == STATUS_OK);
    EXPECT(m, comm_split(copy, m->rank % 2, "group", &group) == STATUS_OK);
    for (int i = 0; i < CALLS; i++) {
        EXPECT(m, comm_barrier(copy) == STATUS_OK);
        EXPECT(m, comm_barrier(group) == STATUS_OK);
    }
    EXPECT(m, comm_counted(copy, COMM_CONTROL).seconds > CALLS * 2.5e-3);
    EXPECT(m, comm_counted(group, COMM_CONTROL).seconds > CALLS * 2.5e-3);
    comm_destroy(group);
    comm_destroy(copy);
    comm_destroy(parent);
}

/* --- counters ------------------------------------------------------------------------------- */

/* Bytes are counted when a call is made, even while it is in flight, so that the count at the end
 * of a step is exact. */
static void case_bytes_in_flight(struct member *m)
{
    enum { N = 100 };
    struct comm *slow;
    char *full = take(m, (size_t)m->size * N), *shard = take(m, N);
    EXPECT(m, comm_dup(m->comm, "slow", &slow) == STATUS_OK);
    comm_slow_down(slow, 0.3);
    comm_all_gather(slow, shard, full, N, DTYPE_U8, m->worker);
    struct comm_counter early = comm_counted(slow, COMM_ALL_GATHER);
    EXPECT(m, stream_sync(m->worker) == STATUS_OK);
    struct comm_counter late = comm_counted(slow, COMM_ALL_GATHER);
    EXPECT(m, late.calls == 1);
    EXPECT(m, early.bytes == (m->size - 1) * N && late.bytes == early.bytes);
    comm_destroy(slow);
    give(m, full);
    give(m, shard);
}

static bool counted(const struct comm *comm, enum comm_kind kind, int64_t calls, int64_t bytes)
{
    struct comm_counter counter = comm_counted(comm, kind);
    return counter.calls == calls && counter.bytes == bytes && counter.seconds >= 0;
}

static void case_bytes(struct member *m)
{
    enum { N = 1000 };
    struct comm *comm;
    int n = m->size, me = m->rank;
    float *x = take(m, (size_t)n * N * 8), *y = take(m, (size_t)n * N * 8);
    float *scratch = take(m, 2 * (size_t)(n * N + 64 * n) * 8);
    int64_t out[MOST_RANKS], in[MOST_RANKS], at[MOST_RANKS] = {0}, sent = 0;
    char mine_24[24] = {0}, all_24[24 * MOST_RANKS];
    EXPECT(m, comm_dup(m->comm, "counted", &comm) == STATUS_OK);
    for (int r = 0; r < n; r++) {
        out[r] = me + 1;
        in[r] = r + 1;
        sent += r == me ? 0 : 4 * (me + 1);
        at[r] = r * 100;
    }
    comm_all_gather(comm, x + me * N, x, N, DTYPE_F32, m->worker);
    comm_all_gather(comm, x + me * N, x, 10, DTYPE_U8, m->worker);
    comm_all_to_all(comm, x, y, N, DTYPE_F32, m->worker);
    comm_all_to_all_v(comm, x, y, &(struct comm_parts){out, at, in, at}, DTYPE_F32, m->worker);
    comm_reduce_scatter(comm, x, y, N, DTYPE_F32, scratch, m->worker);
    comm_all_reduce(comm, x, N, DTYPE_BF16, scratch, m->worker);
    EXPECT(m, stream_sync(m->worker) == STATUS_OK);
    EXPECT(m, comm_barrier(comm) == STATUS_OK);
    EXPECT(m, comm_exchange(comm, mine_24, 24, all_24) == STATUS_OK);
    int64_t others = n - 1, rounds = 0, range = (N + n - 1) / n;
    while (1 << rounds < n)
        rounds++;
    range = (range + 63) / 64 * 64;
    int64_t mine = N - me * range < 0 ? 0 : N - me * range < range ? N - me * range : range;
    EXPECT(m, counted(comm, COMM_ALL_GATHER, 2, others * (4 * N + 10)));
    EXPECT(m, counted(comm, COMM_ALL_TO_ALL, 2, others * 4 * N + sent));
    EXPECT(m, counted(comm, COMM_REDUCE_SCATTER, 1, others * 4 * N));
    EXPECT(m, counted(comm, COMM_ALL_REDUCE, 1, 2 * (N - mine + others * mine)));
    EXPECT(m, counted(comm, COMM_CONTROL, 2, rounds + others * 24));
    EXPECT(m, counted(comm, COMM_SEND, 0, 0));
    comm_destroy(comm);
    give(m, x);
    give(m, y);
    give(m, scratch);
}

/* Each rank except the root receives a broadcast once, so n - 1 copies are sent in total. */
static void case_broadcast_bytes(struct member *m)
{
    char data[10] = {0};
    for (int root = 0; root < m->size; root++) {
        int64_t before = comm_counted(m->comm, COMM_BROADCAST).bytes, sent[MOST_RANKS], all = 0;
        comm_broadcast(m->comm, data, 10, DTYPE_U8, root, m->direct);
        int64_t mine = comm_counted(m->comm, COMM_BROADCAST).bytes - before;
        EXPECT(m, comm_exchange(m->comm, &mine, sizeof mine, sent) == STATUS_OK);
        for (int r = 0; r < m->size; r++)
            all += sent[r];
        EXPECT(m, all == 10 * (m->size - 1));
    }
}

/* Several threads of a rank query another rank's position at once, each on its own communicator. */
struct asker {
    struct comm *comm;
    int peer;
    int64_t number; /* calls so far, which the answer must report */
    int wrong;
};

static void *ask_often(void *argument)
{
    struct asker *a = argument;
    for (int i = 0; i < 20; i++) {
        struct comm_position position = {0};
        if (!a->comm->backend->ask(a->comm, a->peer, &position) || !position.here ||
            position.number != a->number)
            a->wrong++;
    }
    return NULL;
}

static void case_questions(struct member *m)
{
    enum { COMMS = 3 };
    struct asker askers[COMMS];
    pthread_t threads[COMMS];
    if (m->size == 1)
        return;
    for (int c = 0; c < COMMS; c++) {
        struct asker *a = &askers[c];
        *a = (struct asker){.peer = (m->rank + 1) % m->size, .number = c + 1};
        EXPECT(m, comm_dup(m->comm, "asked", &a->comm) == STATUS_OK);
        for (int i = 0; i <= c; i++)
            EXPECT(m, comm_barrier(a->comm) == STATUS_OK);
    }
    EXPECT(m, comm_barrier(m->comm) == STATUS_OK);
    for (int c = 0; c < COMMS; c++)
        EXPECT(m, pthread_create(&threads[c], NULL, ask_often, &askers[c]) == 0);
    for (int c = 0; c < COMMS; c++) {
        pthread_join(threads[c], NULL);
        EXPECT(m, askers[c].wrong == 0);
    }
    EXPECT(m, comm_barrier(m->comm) == STATUS_OK);
    for (int c = 0; c < COMMS; c++)
        comm_destroy(askers[c].comm);
}

static const struct comm_case cases[] = {
    {.name = "all_gather", .run = case_all_gather},
    {.name = "all_to_all", .run = case_all_to_all},
    {.name = "all_to_all_v", .run = case_all_to_all_v},
    {.name = "broadcast", .run = case_broadcast},
    {.name = "send_recv", .run = case_send_recv},
    {.name = "host", .run = case_host},
    {.name = "host_after_stream", .run = case_host_after_stream},
    {.name = "large", .run = case_large},
    {.name = "reduce_scatter", .run = case_reduce_scatter},
    {.name = "all_reduce", .run = case_all_reduce},
    {.name = "library_sums", .run = case_library_sums},
    {.name = "order_matters", .run = case_order_matters},
    {.name = "split", .run = case_split},
    {.name = "two_streams", .run = case_two_streams},
    {.name = "delays", .run = case_delays},
    {.name = "delayed_children", .run = case_delayed_children},
    {.name = "bytes_in_flight", .run = case_bytes_in_flight},
    {.name = "bytes", .run = case_bytes},
    {.name = "broadcast_bytes", .run = case_broadcast_bytes},
    {.name = "questions", .run = case_questions},
};

int main(int argc, char **argv)
{
    return rig_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
