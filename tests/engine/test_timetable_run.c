/* The lists carried out by ranks that are threads, with real messages: no rank waits forever, and
 * each message is the intended one. Once with blocking calls in list order, once with messages on a
 * side stream and delays. */
#include "comm/comm.h"
#include "engine/timetable.h"
#include "testing.h"
#include "threads.h"

enum { MOST_RANKS = 5, MOST_CHUNKS = 3, MOST_ROUNDS = 9, NUMBERS = 512 };

struct rank_run {
    struct comm_hub *hub;
    struct timetable_shape shape;
    int rank;
    bool side_stream;
    struct env env;
    struct stream *stream;
    struct comm *comm;
    /* (activations or gradients, chunks, rounds) received, and sent */
    int64_t in[2][MOST_CHUNKS][MOST_ROUNDS][NUMBERS], out[2][MOST_CHUNKS][MOST_ROUNDS][NUMBERS];
    char wrong[256];
};

/* The message of stage `from` in this round. */
static int64_t token(bool activation, int from, int round)
{
    return ((int64_t)activation << 40) + ((int64_t)from << 20) + round;
}

static void send_or_receive(struct rank_run *run, struct timetable_action a)
{
    bool activation = a.verb == TIMETABLE_SEND_ACTIVATION || a.verb == TIMETABLE_RECV_ACTIVATION;
    int peer = timetable_peer(&run->shape, run->rank, a.verb);
    int s = timetable_pp_stage(&run->shape, run->rank, a.chunk);
    int64_t *out = run->out[activation][a.chunk][a.round];
    if (!timetable_is_send(a.verb)) {
        comm_recv(run->comm, run->in[activation][a.chunk][a.round], NUMBERS, DTYPE_I64, peer,
                  run->stream);
        return;
    }
    for (int i = 0; i < NUMBERS; i++)
        out[i] = token(activation, s, a.round);
    comm_send(run->comm, out, NUMBERS, DTYPE_I64, peer, run->stream);
}

/* The input of the pass must have arrived. */
static void compute(struct rank_run *run, struct timetable_action a)
{
    bool forward = a.verb == TIMETABLE_FORWARD;
    int s = timetable_pp_stage(&run->shape, run->rank, a.chunk);
    int verb = forward ? TIMETABLE_RECV_ACTIVATION : TIMETABLE_RECV_GRADIENT;
    const int64_t *in = run->in[forward][a.chunk][a.round];
    if (a.verb == TIMETABLE_WEIGHT || !timetable_has(&run->shape, run->rank, verb, a.chunk))
        return;
    if (stream_sync(run->stream) != STATUS_OK)
        snprintf(run->wrong, sizeof run->wrong, "rank %d: %s", run->rank,
                 log_first_error(run->env.log));
    for (int i = 0; i < NUMBERS; i++)
        if (in[i] != token(forward, forward ? s - 1 : s + 1, a.round))
            snprintf(run->wrong, sizeof run->wrong, "rank %d, chunk %d, round %d: wrong data",
                     run->rank, a.chunk, a.round);
}

static void carry_out(struct rank_run *run)
{
    struct timetable t;
    assert_ok(timetable_create(&run->env, &run->shape, &t));
    for (int64_t i = t.first[run->rank]; i < t.first[run->rank + 1]; i++) {
        if (timetable_is_message(t.actions[i].verb))
            send_or_receive(run, t.actions[i]);
        else
            compute(run, t.actions[i]);
    }
    assert_ok(stream_sync(run->stream));
    timetable_free(&run->env, &t);
}

static void *run_rank(void *argument)
{
    struct rank_run *run = argument;
    struct comm_config config = {.backend = "threads", .timeout = 60};
    struct device *device;
    run->env = testing_env(1);
    assert_ok(device_create(&run->env, "cpu", 0, &device));
    assert_ok(
        (run->side_stream ? stream_create_worker : stream_create)(device, "pp", &run->stream));
    assert_ok(comm_join(run->hub, run->rank, &config, device, &run->comm));
    if (run->side_stream)
        comm_inject_delays(run->comm, 2e-4, 6);
    carry_out(run);
    comm_destroy(run->comm);
    stream_destroy(run->stream);
    device_destroy(device);
    env_destroy(&run->env);
    return NULL;
}

static void run_shape(struct timetable_shape shape, bool side_stream)
{
    struct env env = testing_env(1);
    struct rank_run *runs = calloc(MOST_RANKS, sizeof *runs);
    struct comm_hub *hub;
    assert_non_null(runs);
    assert_ok(comm_hub_create(&env, shape.pp, &hub));
    for (int p = 0; p < shape.pp; p++) {
        runs[p].hub = hub;
        runs[p].shape = shape;
        runs[p].rank = p;
        runs[p].side_stream = side_stream;
    }
    threads_run(run_rank, runs, shape.pp, sizeof *runs);
    for (int p = 0; p < shape.pp; p++)
        if (runs[p].wrong[0] != '\0')
            fail_msg("%s, pp %d, chunks %d, rounds %d: %s", timetable_words[shape.kind], shape.pp,
                     shape.chunks, shape.rounds, runs[p].wrong);
    comm_hub_destroy(hub);
    free(runs);
    env_destroy(&env);
}

static void test_lists_end(void **state)
{
    (void)state;
    for (int side_stream = 0; side_stream < 2; side_stream++)
        for (int pp = 2; pp <= MOST_RANKS; pp++)
            for (int rounds = 1; rounds <= MOST_ROUNDS; rounds += 4)
                for (int kind = 0; timetable_words[kind] != NULL; kind++) {
                    int chunks = kind == TIMETABLE_INTERLEAVED ? MOST_CHUNKS : 1;
                    run_shape((struct timetable_shape){kind, pp, chunks, rounds, false},
                              side_stream);
                    if (kind != TIMETABLE_GPIPE)
                        run_shape((struct timetable_shape){kind, pp, chunks, rounds, true},
                                  side_stream);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
