/* The bytes that the ranks of a TP group send each other: in a real group, and planned for one rank
 * without the others. */
#include "model/tensor_rig.h"

/* In units of (t - 1) / t of an activation (R, C): a layer sends 8, or 10 if inputs are gathered
 * again; embedding and head together 4; and three doubles a row to every other rank for the loss.
 * Where all heads have one norm, two doubles a row are summed in each pass of a layer. */
static void check_wire(const struct setting *s, int rank, const int64_t *bytes)
{
    int64_t rows = s->batch * s->tokens, layers = s->config.layers, total = 0;
    int64_t sent = rows * s->config.width * (int64_t)dtype_bytes(s->type) / s->tp * (s->tp - 1);
    int64_t parts = rows * 3 * 8 * (s->tp - 1), a_layer = modes[s->mode].regather ? 10 : 8;
    bool sequence = modes[s->mode].sequence, whole = model_traits(s->config.arch)->whole_norm;
    int64_t count = 2 * rows, mine = rank == 0 ? count : 0; /* less than one block of 64 */
    int64_t numbers = whole ? layers * 2 * (count - mine + (s->tp - 1) * mine) * 8 : 0;
    assert_true(!whole || count <= 64);
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++)
        total += bytes[kind];
    assert_int_equal(total, (a_layer * layers + 4) * sent + parts + numbers);
    assert_int_equal(bytes[COMM_ALL_REDUCE],
                     numbers + (sequence ? 0 : (4 * layers + 2) * 2 * sent));
    assert_int_equal(bytes[COMM_REDUCE_SCATTER], sequence ? (4 * layers + 2) * sent : 0);
}

static void test_wire(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int tp = 2; tp <= MOST_RANKS; tp *= 2)
            for (int mode = 0; mode < MODES; mode++) {
                struct setting s = setting_of(model_at(m), "cpu", DTYPE_F32);
                struct rank ranks[MOST_RANKS];
                s.tp = tp;
                s.mode = mode;
                run_ranks(&s, true, work_gradients, ranks);
                for (int r = 0; r < tp; r++)
                    check_wire(&s, r, ranks[r].bytes);
                close_ranks(ranks, tp);
            }
}

#define DRY_BYTES ((size_t)1 << 36) /* more than any buffer has */

/* One pass on a dry device: pointers are addresses that nobody touches, those of buffers apart. */
static void dry_pass(const struct unit *unit, enum pass pass, void *address, struct unit_run *run)
{
    struct unit_buffer list[UNIT_MAX_BUFFERS];
    int count = unit->type->buffers(unit, run->ops, run->shape, list);
    for (int b = 0; b < count; b++)
        run->buffers[b] = (char *)address + (size_t)(b + 1) * DRY_BYTES;
    for (int i = 0; i < unit->use_count; i++) {
        run->params[i] = unit_reads(unit, pass, i) ? address : NULL;
        run->grads[i] = unit_writes(unit, pass, i) ? address : NULL;
    }
    unit_run_pass(unit, pass, run);
    run->residual = run->out_residual;
    run->pending = run->out_pending;
}

static void walk_dry(const struct setting *s, int rank, int64_t *bytes)
{
    struct lone l;
    struct ops *ops;
    struct stream *stream;
    struct comm *group;
    void *address;
    struct model_part part = part_of(s, rank);
    open_lone(&l, &s->config, &part);
    assert_int_equal(ops_create(l.device, "cpu", s->type, &ops), STATUS_OK);
    assert_int_equal(stream_create(l.device, "dry", &stream), STATUS_OK);
    assert_int_equal(comm_create_dry(l.device, rank, s->tp, false, &group), STATUS_OK);
    assert_int_equal(
        device_alloc(l.device, MEM_OTHER, "dry", (UNIT_MAX_BUFFERS + 1) * DRY_BYTES, &address),
        STATUS_OK);
    struct unit_run run = {.ops = ops,
                           .stream = stream,
                           .group = group,
                           .shape = {s->batch, s->tokens, l.graph->sequence},
                           .tokens = address,
                           .labels = address,
                           .scalars = address,
                           .room = address,
                           .gradient = address,
                           .loss = address};
    int last = l.graph->unit_count - 1;
    for (int u = 0; u < last; u++)
        dry_pass(&l.graph->units[u], PASS_FORWARD, address, &run);
    dry_pass(&l.graph->units[last], PASS_LOSS, address, &run);
    for (int u = last - 1; u >= 0; u--)
        dry_pass(&l.graph->units[u], PASS_BACKWARD, address, &run);
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++)
        bytes[kind] = comm_counted(group, (enum comm_kind)kind).bytes;
    device_free(l.device, address);
    comm_destroy(group);
    stream_destroy(stream);
    ops_destroy(ops);
    close_lone(&l);
}

/* A rank of a group that is not there counts the same, also at sizes that nobody runs here. */
static void test_dry(void **state)
{
    (void)state;
    int64_t bytes[COMM_KIND_COUNT];
    struct setting s = setting_of(llama(2), "cpu", DTYPE_F32);
    for (s.mode = 0; s.mode < MODES; s.mode++) {
        s.tp = 4;
        walk_dry(&s, 3, bytes);
        check_wire(&s, 3, bytes);
    }
    s.config.layers = 32;
    s.config.width = 4096;
    s.config.heads = 32;
    s.config.kv_heads = s.tp = 8;
    s.config.head_width = 128;
    s.config.ff = 14336;
    s.config.context = 8192;
    s.config.vocab = 128256;
    s.batch = 1;
    s.tokens = 8192;
    for (s.mode = 0; s.mode < MODES; s.mode++) {
        walk_dry(&s, 5, bytes);
        check_wire(&s, 5, bytes);
    }
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_dry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
