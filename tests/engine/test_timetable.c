/* Lists of every kind and many shapes are proved correct; planted errors are found; and the check
 * agrees with a second implementation on lists that were changed at random. */
#include "base/rng.h"
#include "engine/timetable_impl.h"
#include "testing.h"

enum { MOST_PP = 8, MOST_CHUNKS = 4, MOST_ROUNDS = 20 };

static bool there_is(struct timetable_shape shape)
{
    return (shape.chunks == 1 || shape.kind == TIMETABLE_INTERLEAVED) &&
           (!shape.eager || shape.kind != TIMETABLE_GPIPE);
}

typedef void shape_fn(struct env *env, const struct timetable *t);

/* Every shape up to these numbers. */
static void for_shapes(int pp, int chunks, int rounds, shape_fn *fn)
{
    struct env env = testing_env(1);
    struct timetable_shape s;
    for (s.kind = 0; timetable_words[s.kind] != NULL; s.kind++)
        for (int eager = 0; eager < 2; eager++)
            for (s.pp = 1; s.pp <= pp; s.pp++)
                for (s.chunks = 1; s.chunks <= chunks; s.chunks++)
                    for (s.rounds = 1; s.rounds <= rounds; s.rounds++) {
                        struct timetable t;
                        s.eager = eager;
                        if (!there_is(s))
                            continue;
                        assert_ok(timetable_create(&env, &s, &t));
                        fn(&env, &t);
                        timetable_free(&env, &t);
                    }
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
}

/* --- every shape ---------------------------------------------------------------------------- */

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* The rounds of a chunk in flight, derived independently of the code. */
static void expect_in_flight(const struct timetable_shape *s, int p, int chunk, int most)
{
    int behind = s->pp - 1 - p;
    assert_int_equal(most, timetable_in_flight(s, p, chunk)); /* exactly as many */
    switch (s->kind) {
    case TIMETABLE_GPIPE: assert_int_equal(most, s->rounds); break;
    case TIMETABLE_1F1B:
        assert_int_equal(most, smaller(s->rounds, (s->eager ? 2 * behind : behind) + 1));
        break;
    case TIMETABLE_ZERO_BUBBLE:
        assert_int_equal(most, smaller(s->rounds, s->eager ? 2 * s->pp - 1 : s->pp));
        break;
    default: assert_true(most <= s->rounds);
    }
}

/* Over all chunks of a rank. */
static int count_in_flight(const struct timetable *t, int p)
{
    int now = 0, most = 0;
    for (int64_t i = t->first[p]; i < t->first[p + 1]; i++) {
        now += t->actions[i].verb == TIMETABLE_FORWARD;
        most = now > most ? now : most;
        now -= t->actions[i].verb == TIMETABLE_BACKWARD;
    }
    return most;
}

/* Whole groups: the chunks of a group that are not the last, and the distance to the last rank. */
static void expect_interleaved_in_flight(const struct timetable *t, int p)
{
    const struct timetable_shape *s = &t->shape;
    if (s->kind == TIMETABLE_INTERLEAVED && s->rounds % s->pp == 0)
        assert_int_equal(
            count_in_flight(t, p),
            smaller(s->rounds * s->chunks,
                    (s->chunks - 1) * s->pp + (s->eager ? 2 : 1) * (s->pp - 1 - p) + 1));
}

static void expect_right(struct env *env, const struct timetable *t)
{
    assert_ok(timetable_check(env, t));
    for (int p = 0; p < t->shape.pp; p++) {
        expect_interleaved_in_flight(t, p);
        for (int chunk = 0; chunk < t->shape.chunks; chunk++) {
            struct timetable_peaks peaks = timetable_count_peaks(t, p, chunk);
            expect_in_flight(&t->shape, p, chunk, peaks.in_flight);
            assert_true(peaks.held >= peaks.in_flight && peaks.held <= t->shape.rounds);
            assert_true(peaks.split <= peaks.in_flight);
            assert_true((peaks.split > 0) == (t->shape.kind == TIMETABLE_ZERO_BUBBLE));
        }
    }
}

static void test_every_shape(void **state)
{
    (void)state;
    for_shapes(MOST_PP, MOST_CHUNKS, MOST_ROUNDS, expect_right);
}

/* Law 4: no other pass is between a pass and the message with its result. */
static void expect_sent_at_once(struct env *env, const struct timetable *t)
{
    (void)env;
    for (int p = 0; p < t->shape.pp; p++) {
        struct timetable_action pass = {0};
        for (int64_t i = t->first[p]; i < t->first[p + 1]; i++) {
            struct timetable_action a = t->actions[i];
            if (!timetable_is_message(a.verb))
                pass = a;
            else if (timetable_is_send(a.verb))
                assert_true(pass.chunk == a.chunk && pass.round == a.round &&
                            (pass.verb == TIMETABLE_FORWARD) ==
                                (a.verb == TIMETABLE_SEND_ACTIVATION));
        }
    }
}

static void test_messages_are_sent_without_delay(void **state)
{
    (void)state;
    for_shapes(5, 3, 9, expect_sent_at_once);
}

/* A smaller step leaves out the last rounds of a list: the rest can be carried out and needs no
 * more memory. With one chunk it is even as good a list as that of the smaller shape. */
static void expect_shorter(struct env *env, const struct timetable *t)
{
    struct timetable shorter = {.shape = t->shape};
    int64_t first[MOST_PP + 1] = {0}, at[MOST_PP];
    if (--shorter.shape.rounds == 0)
        return;
    assert_ok(mem_alloc_array(env, MEM_OTHER, "test", (size_t)t->first[t->shape.pp],
                              sizeof *shorter.actions, &shorter.actions));
    shorter.first = first;
    for (int p = 0; p < t->shape.pp; p++) {
        first[p + 1] = first[p];
        for (int64_t i = t->first[p]; i < t->first[p + 1]; i++)
            if (t->actions[i].round < shorter.shape.rounds)
                shorter.actions[first[p + 1]++] = t->actions[i];
    }
    assert_ok(timetable_execute(env, &shorter, NULL, NULL, at));
    assert_true(timetable_executed(&shorter, at));
    for (int p = 0; p < t->shape.pp; p++)
        for (int c = 0; c < t->shape.chunks; c++) {
            struct timetable_peaks all = timetable_count_peaks(t, p, c);
            struct timetable_peaks some = timetable_count_peaks(&shorter, p, c);
            assert_true(some.in_flight <= all.in_flight && some.held <= all.held &&
                        some.split <= all.split && some.gradients <= all.gradients);
        }
    if (t->shape.chunks == 1)
        assert_ok(timetable_check(env, &shorter));
    expect_shorter(env, &shorter);
    mem_free(env, shorter.actions);
}

static void test_fewer_rounds_need_no_list_of_their_own(void **state)
{
    (void)state;
    for_shapes(5, 3, 9, expect_shorter);
}

static void test_refused_shapes(void **state)
{
    (void)state;
    static const struct {
        struct timetable_shape shape;
        const char *why;
    } cases[] = {
        {{TIMETABLE_1F1B, 0, 1, 1, false}, "parallel.pp=0 is out of range"},
        {{TIMETABLE_1F1B, 2, 1, 0, false}, "0 micro-batches per copy"},
        {{TIMETABLE_INTERLEAVED, 2, 0, 1, false}, "parallel.chunks=0 is out of range"},
        {{TIMETABLE_GPIPE, 2, 2, 1, false}, "parallel.schedule=gpipe, which has one chunk"},
        {{TIMETABLE_ZERO_BUBBLE, 2, 2, 1, false},
         "parallel.schedule=zero-bubble, which has one chunk"},
        {{TIMETABLE_GPIPE, 2, 1, 1, true}, "parallel.eager conflicts with parallel.schedule=gpipe"},
    };
    struct env env = testing_env(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct timetable t;
        assert_int_equal(timetable_create(&env, &cases[i].shape, &t), STATUS_CONFIG);
        assert_non_null(strstr(log_first_error(env.log), cases[i].why));
        log_error_clear(env.log);
    }
    env_destroy(&env);
}

/* --- planted errors ------------------------------------------------------------------------- */

/* The index in rank p's list of the action with this name. */
static int64_t find(const struct timetable *t, int p, const char *what)
{
    char name[TIMETABLE_NAME_BYTES];
    for (int64_t i = t->first[p]; i < t->first[p + 1]; i++)
        if (strcmp(timetable_name(&t->shape, p, t->actions[i], name), what) == 0)
            return i;
    fail_msg("rank %d has no %s", p, what);
    return -1;
}

static void swap(struct timetable *t, int64_t i, int64_t j)
{
    struct timetable_action a = t->actions[i];
    t->actions[i] = t->actions[j];
    t->actions[j] = a;
}

/* Move action i to position j of the same list. */
static void move(struct timetable *t, int64_t i, int64_t j)
{
    for (; i < j; i++)
        swap(t, i, i + 1);
    for (; i > j; i--)
        swap(t, i, i - 1);
}

static void delete (struct timetable *t, int p, int64_t i)
{
    move(t, i, t->first[t->shape.pp] - 1);
    for (int q = p + 1; q <= t->shape.pp; q++)
        t->first[q]--;
}

static void expect_found(struct env *env, struct timetable *t, const char *why)
{
    assert_int_equal(timetable_check(env, t), STATUS_INTERNAL);
    if (strstr(log_first_error(env->log), why) == NULL)
        fail_msg("'%s' is not in '%s'", why, log_first_error(env->log));
    log_error_clear(env->log);
    timetable_free(env, t);
}

static struct timetable make(struct env *env, struct timetable_shape shape)
{
    struct timetable t;
    assert_ok(timetable_create(env, &shape, &t));
    return t;
}

static void test_planted_errors(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    const struct timetable_shape one = {TIMETABLE_GPIPE, 1, 1, 3, false};
    const struct timetable_shape f1b = {TIMETABLE_1F1B, 2, 1, 4, false};
    const struct timetable_shape zero = {TIMETABLE_ZERO_BUBBLE, 3, 1, 6, false};
    const struct timetable_shape chunks = {TIMETABLE_INTERLEAVED, 1, 2, 2, false};

    struct timetable t = make(&env, one); /* the order of rounds */
    swap(&t, find(&t, 0, "B0"), find(&t, 0, "B1"));
    expect_found(&env, &t, "rank 0 does B1 (action 3) before B0 (action 4)");

    t = make(&env, zero); /* the order of backward-weight passes */
    swap(&t, find(&t, 1, "W2"), find(&t, 1, "W3"));
    expect_found(&env, &t, "rank 1 does W3");

    t = make(&env, f1b); /* a missing receive */
    delete (&t, 1, find(&t, 1, "a2<0"));
    expect_found(&env, &t, "a2<0 is missing in the list of rank 1");

    t = make(&env, f1b); /* a duplicate action */
    t.actions[find(&t, 0, "F3")] = t.actions[find(&t, 0, "F2")];
    expect_found(&env, &t, "rank 0 does F2 twice");

    t = make(&env, f1b); /* an action of no rank */
    t.actions[find(&t, 0, "B3")].round = 4;
    expect_found(&env, &t, "there is no verb 1 of chunk 0, round 4");

    t = make(&env, f1b); /* an action of another schedule */
    t.actions[find(&t, 0, "B3")].verb = TIMETABLE_INPUT;
    expect_found(&env, &t, "I3 does not belong here");

    t = make(&env, f1b); /* data used before it arrives */
    move(&t, find(&t, 1, "a1<0"), find(&t, 1, "F1"));
    expect_found(&env, &t, "rank 1 does F1");

    t = make(&env, chunks); /* between chunks of one rank */
    swap(&t, find(&t, 0, "F0.0"), find(&t, 0, "F1.0"));
    expect_found(&env, &t, "rank 0 does F1.0 (action 0) before F0.0");

    t = make(&env, f1b); /* sends in another order than receives */
    move(&t, find(&t, 1, "a0<0"), find(&t, 1, "a1<0"));
    expect_found(&env, &t, "message 0 of rank 0 to rank 1: a0>1 is sent, a1<0 is awaited");

    t = make(&env, f1b); /* more in flight than memory is planned for */
    move(&t, find(&t, 0, "B0"), find(&t, 0, "B1") - 1);
    expect_found(&env, &t, "rank 0 has 3 rounds of chunk 0 in flight; memory is planned for 2");

    env_destroy(&env);
}

/* A deadlock: two ranks that both send first. */
static void test_planted_deadlock(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct timetable t = make(&env, (struct timetable_shape){TIMETABLE_1F1B, 2, 1, 4, false});
    /* rank 0: ... g1<1 F2 a2>1 B1 ..., rank 1: ... B1 g1>0 a2<0 ... */
    move(&t, find(&t, 0, "g1<1"), find(&t, 0, "a2>1"));
    expect_found(&env, &t,
                 "deadlock: rank 0 at action 7, a2>1; rank 1 at "
                 "action 7, g1>0");
    env_destroy(&env);
}

/* --- a second opinion ----------------------------------------------------------------------- */

/* Carry out the lists with tokens for data; any error is the same answer. */
struct opinion {
    const struct timetable *t;
    int at[MOST_PP];
    /* counts of a stage's rounds: */
    bool input[MOST_PP * MOST_CHUNKS][MOST_ROUNDS], forward[MOST_PP * MOST_CHUNKS][MOST_ROUNDS];
    bool gradient[MOST_PP * MOST_CHUNKS][MOST_ROUNDS];
    bool sent[MOST_PP * MOST_CHUNKS][MOST_ROUNDS][2];
    int backwards[MOST_PP * MOST_CHUNKS], weights[MOST_PP * MOST_CHUNKS];
    int in_flight[MOST_PP * MOST_CHUNKS];
};

static bool pass_is_right(struct opinion *o, int p, struct timetable_action a)
{
    const struct timetable_shape *shape = &o->t->shape;
    int s = timetable_pp_stage(shape, p, a.chunk), last = timetable_pp_stages(shape) - 1;
    bool split = shape->kind == TIMETABLE_ZERO_BUBBLE;
    switch (a.verb) {
    case TIMETABLE_FORWARD:
        if (!o->input[s][a.round] || o->forward[s][a.round])
            return false;
        o->forward[s][a.round] = true;
        if (s == last)
            o->gradient[s][a.round] = true;
        else if (shape->pp == 1)
            o->input[s + 1][a.round] = true;
        return ++o->in_flight[s] <= timetable_in_flight(shape, p, a.chunk);
    case TIMETABLE_WEIGHT:
        o->in_flight[s]--;
        return split && a.round < o->backwards[s] && a.round == o->weights[s]++;
    default:
        if (!split)
            o->in_flight[s]--;
        if (s > 0 && shape->pp == 1)
            o->gradient[s - 1][a.round] = true;
        return split == (a.verb == TIMETABLE_INPUT) && o->gradient[s][a.round] &&
               o->forward[s][a.round] && a.round == o->backwards[s]++;
    }
}

/* Whether `recv` of rank q matches `send` of rank p; if so, receive it. */
static bool message_is_right(struct opinion *o, int p, struct timetable_action send, int q,
                             struct timetable_action recv)
{
    int s = timetable_pp_stage(&o->t->shape, p, send.chunk);
    int to = timetable_pp_stage(&o->t->shape, q, recv.chunk);
    bool activation = send.verb == TIMETABLE_SEND_ACTIVATION;
    bool made = activation ? o->forward[s][send.round] : o->backwards[s] > send.round;
    if (activation != (recv.verb == TIMETABLE_RECV_ACTIVATION) || send.round != recv.round ||
        to != s + (activation ? 1 : -1) || !made || o->sent[s][send.round][activation])
        return false;
    o->sent[s][send.round][activation] = true;
    (activation ? o->input : o->gradient)[to][recv.round] = true;
    return true;
}

static bool is_finished(const struct opinion *o)
{
    int last = timetable_pp_stages(&o->t->shape) - 1;
    for (int p = 0; p < o->t->shape.pp; p++)
        if (o->t->first[p] + o->at[p] != o->t->first[p + 1])
            return false;
    for (int s = 0; s <= last; s++) {
        if (o->backwards[s] != o->t->shape.rounds || o->in_flight[s] != 0)
            return false;
        for (int r = 0; r < o->t->shape.rounds && o->t->shape.pp > 1; r++)
            if (o->sent[s][r][1] != (s < last) || o->sent[s][r][0] != (s > 0))
                return false;
    }
    return true;
}

static bool is_right(const struct timetable *t)
{
    struct opinion o = {.t = t};
    for (int r = 0; r < t->shape.rounds; r++)
        o.input[0][r] = true;
    for (bool moved = true; moved;) {
        moved = false;
        for (int p = 0; p < t->shape.pp; p++) {
            if (t->first[p] + o.at[p] == t->first[p + 1])
                continue;
            struct timetable_action a = t->actions[t->first[p] + o.at[p]], b;
            if (!timetable_is_message(a.verb)) {
                if (!pass_is_right(&o, p, a))
                    return false;
                o.at[p]++;
                moved = true;
                continue;
            }
            int q = timetable_peer(&t->shape, p, a.verb);
            if (!timetable_is_send(a.verb) || t->first[q] + o.at[q] == t->first[q + 1])
                continue;
            b = t->actions[t->first[q] + o.at[q]];
            if (!timetable_is_message(b.verb) || timetable_is_send(b.verb) ||
                timetable_peer(&t->shape, q, b.verb) != p)
                continue;
            if (!message_is_right(&o, p, a, q, b))
                return false;
            o.at[p]++, o.at[q]++;
            moved = true;
        }
    }
    return is_finished(&o);
}

/* One or two moves within a list, mostly to a nearby position; sometimes another round. */
static void disturb(struct timetable *t, struct rng rng, uint64_t n)
{
    for (uint64_t k = 0; k < 1 + n % 2; k++) {
        uint64_t bits = rng_bits(rng, 4 * n + k);
        int p = (int)(bits % (uint64_t)t->shape.pp);
        int64_t count = t->first[p + 1] - t->first[p];
        int64_t i = (int64_t)((bits >> 8) % (uint64_t)count);
        int64_t j = i + 1 + (int64_t)((bits >> 32) % 3);
        j = j < count ? j : count - 1;
        if (bits >> 60 == 0)
            t->actions[t->first[p] + i].round = (int32_t)((bits >> 40) % 2);
        else
            move(t, t->first[p] + i, t->first[p] + j);
    }
}

static struct {
    int right, wrong;
} verdicts;

static void expect_agreement(struct env *env, const struct timetable *t)
{
    struct rng rng = rng_stream((uint64_t)t->first[t->shape.pp], "disturb");
    assert_true(is_right(t));
    for (uint64_t n = 0; n < 60; n++) {
        struct timetable other;
        char what[512];
        assert_ok(timetable_create(env, &t->shape, &other));
        disturb(&other, rng, n);
        bool right = is_right(&other), found = timetable_check(env, &other) == STATUS_OK;
        snprintf(what, sizeof what, "%s", log_first_error(env->log));
        log_error_clear(env->log);
        if (right != found)
            fail_msg("%s, pp %d, chunks %d, rounds %d, change %d: the check says %s %s",
                     timetable_words[t->shape.kind], t->shape.pp, t->shape.chunks, t->shape.rounds,
                     (int)n, found ? "right" : "wrong", what);
        verdicts.right += right;
        verdicts.wrong += !right;
        timetable_free(env, &other);
    }
}

static void test_check_agrees_with_a_second_implementation(void **state)
{
    (void)state;
    for_shapes(4, 2, 5, expect_agreement);
    assert_true(verdicts.right > 1000 && verdicts.wrong > 1000);
}

/* --- the rest ------------------------------------------------------------------------------- */

static void test_names(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct timetable t = make(&env, (struct timetable_shape){TIMETABLE_1F1B, 2, 1, 3, false});
    const char *const names[] = {"F0",   "a0>1", "F1",   "a1>1", "g0<1", "B0",
                                 "g1<1", "F2",   "a2>1", "B1",   "g2<1", "B2"};
    char name[TIMETABLE_NAME_BYTES];
    assert_int_equal(t.first[1], 12);
    for (int i = 0; i < 12; i++)
        assert_string_equal(timetable_name(&t.shape, 0, t.actions[i], name), names[i]);
    timetable_free(&env, &t);
    env_destroy(&env);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    const struct timetable_shape shape = {TIMETABLE_ZERO_BUBBLE, 3, 1, 4, false};
    for (int64_t n = 1;; n++) {
        struct timetable t;
        mem_fail_at(env.mem, n);
        enum status st = timetable_create(&env, &shape, &t);
        if (st == STATUS_OK)
            st = timetable_check(&env, &t);
        timetable_free(&env, &t);
        assert_int_equal(mem_total(env.mem), 0);
        if (st == STATUS_OK) {
            assert_true(n > 10);
            break;
        }
        assert_int_equal(st, STATUS_MEMORY);
    }
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shape),
        cmocka_unit_test(test_messages_are_sent_without_delay),
        cmocka_unit_test(test_fewer_rounds_need_no_list_of_their_own),
        cmocka_unit_test(test_refused_shapes),
        cmocka_unit_test(test_planted_errors),
        cmocka_unit_test(test_planted_deadlock),
        cmocka_unit_test(test_check_agrees_with_a_second_implementation),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
