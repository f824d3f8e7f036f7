/* A checkpoint of format version 1, kept in the tree: every later version must read it with the
 * same bits, on the CPU and on a GPU. */
#include <xxhash.h>
#include "gpu.h"
#include "scratch.h"
#include "train/checkpoint/checkpoint.h"
#include "train/weights/model_file.h"
#include "train/models/model_weights.h"
#include "train/session.h"

static const char GOLDEN[] = "tests/train/golden/checkpoint-1";

/* Hash of all elements of a state, tensor after tensor. */
static uint64_t hash_state(struct session *session, enum zero_state state)
{
    const struct unit_graph *graph = model_graph(session->model);
    float values[4096];
    uint64_t hash = 0;
    for (int t = 0; t < graph->tensor_count; t++) {
        struct zero_range held = zero_state_held(session->zero, state, t);
        assert_true(held.first == 0 && held.count <= 4096);
        assert_int_equal(zero_state_read(session->zero, state, t, 0, held.count, values),
                         STATUS_OK);
        hash = XXH3_64bits_withSeed(values, (size_t)held.count * sizeof *values, hash);
    }
    return hash;
}

static const uint64_t expected[] = {0xd9ccac44eb8863fb, 0xdee0522c93a03a39, 0xfad39b12b55ee1c7};

static void expect_state(struct session *session)
{
    for (int i = 0; i <= ZERO_VARIANCE; i++)
        if (hash_state(session, (enum zero_state)i) != expected[i])
            fail_msg("state %d: %llx", i,
                     (unsigned long long)hash_state(session, (enum zero_state)i));
}

/* Open a session on this device and load the state of a checkpoint. */
static void open_session(struct scratch *s, const char *device, const char *folder,
                         struct session *session, struct checkpoint_progress *progress)
{
    struct compute_config place = {.backend = device,
                                   .type = strcmp(device, "cpu") == 0 ? DTYPE_F32 : DTYPE_F16};
    struct checkpoint *checkpoint;
    struct model_config model = {.path = ""};
    const struct zero_config store = {.optimizer.beta1 = 0.9,
                                      .optimizer.beta2 = 0.95,
                                      .optimizer.eps = 1e-8,
                                      .micro_batches = 1,
                                      .type = DTYPE_F16,
                                      .sum_type = DTYPE_F32};
    assert_int_equal(model_file_config(&s->env, folder, &model), STATUS_OK);
    assert_int_equal(session_create(&s->env, place, &model, &store, session), STATUS_OK);
    assert_int_equal(checkpoint_open(&s->env, folder, &checkpoint), STATUS_OK);
    assert_int_equal(checkpoint_verify(checkpoint, NULL, NULL), STATUS_OK);
    *progress = checkpoint_state(checkpoint)->progress;
    assert_int_equal(checkpoint_load(checkpoint, model_graph(session->model), true, session->zero),
                     STATUS_OK);
    checkpoint_close(checkpoint);
}

static void test_version_1_is_read(void **state)
{
    (void)state;
    struct scratch s;
    struct session session;
    struct checkpoint_progress p;
    scratch_open(&s);
    open_session(&s, test_device(), GOLDEN, &session, &p);
    assert_int_equal(p.step, 5);
    assert_int_equal(p.samples, 30);
    assert_true(p.loss == 5.5707035264375735 && p.scaled && p.scale.scale == 65536);
    expect_state(&session);

    /* the checkpoint can also be read as a model */
    const struct model_want want = {.depth = MODEL_DEPTH_ALL};
    struct model_source *source;
    assert_int_equal(model_source_open(&s.env, GOLDEN, &want, &source), STATUS_OK);
    assert_int_equal(model_weights_load(&s.env, source, session.model, session.zero), STATUS_OK);
    model_source_close(source);
    session_destroy(&session);
    scratch_close(&s);
}

/* Save the state of a session to a new checkpoint, and load it into a session on this device. */
static void move_session(struct scratch *s, const char *name, const char *device,
                         struct session *session, struct checkpoint_progress *progress)
{
    const struct checkpoint_config config = {.keep = 1, .file_bytes = 4096};
    const struct checkpoint_setup setup = {.folder = scratch_path(s, name),
                                           .graph = model_graph(session->model),
                                           .model = session->model,
                                           .zero = session->zero,
                                           .device = session->device,
                                           .type = DTYPE_F16,
                                           .config = &config,
                                           .config_yaml = "run: {}\n"};
    struct checkpoint_saver *saver;
    struct checkpoint_result result;
    assert_int_equal(checkpoint_saver_create(&s->env, &setup, &saver), STATUS_OK);
    assert_int_equal(checkpoint_saver_save(saver, progress), STATUS_OK);
    assert_true(checkpoint_saver_result(saver, true, &result));
    if (!result.saved)
        fail_msg("%s", result.error);
    checkpoint_saver_destroy(saver);
    session_destroy(session);
    open_session(s, device, result.path, session, progress);
}

/* From the device of the test to the CPU and back: no stored bit changes. */
static void test_state_moves_between_devices(void **state)
{
    (void)state;
    struct scratch s;
    struct session session;
    struct checkpoint_progress p;
    scratch_open(&s);
    open_session(&s, test_device(), GOLDEN, &session, &p);
    assert_int_equal(zero_publish(session.zero, p.updates), STATUS_OK);
    move_session(&s, "there", "cpu", &session, &p);
    expect_state(&session);
    assert_int_equal(zero_publish(session.zero, p.updates), STATUS_OK);
    move_session(&s, "back", test_device(), &session, &p);
    expect_state(&session);
    assert_int_equal(p.step, 5);
    session_destroy(&session);
    scratch_close(&s);
}

int main(void)
{
    if (test_device_missing())
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_version_1_is_read),
                                       cmocka_unit_test(test_state_moves_between_devices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
