/* op_rig -- an env, a device, a stream and ops, for tests. */
#ifndef TESTS_OPS_OP_RIG_H
#define TESTS_OPS_OP_RIG_H
#include "testing.h"
#include "ops/ops_impl.h"
#include "ops/ops_trial.h"

struct rig {
    struct env env;
    struct device *device;
    struct stream *stream;
    struct ops *ops;
};

static inline void rig_open(struct rig *rig, const char *backend, enum dtype type, int threads)
{
    rig->env = testing_env(threads);
    const char *device = strcmp(backend, "cuda") == 0 ? "cuda" : "cpu";
    if (device_create(&rig->env, device, 0, &rig->device) != STATUS_OK)
        fail_msg("%s", log_first_error(rig->env.log));
    assert_ok(stream_create(rig->device, "test", &rig->stream));
    assert_ok(ops_create(rig->device, backend, type, &rig->ops));
}

static inline void rig_close(struct rig *rig)
{
    assert_ok(stream_sync(rig->stream));
    ops_destroy(rig->ops);
    stream_destroy(rig->stream);
    device_destroy(rig->device);
    env_destroy(&rig->env);
}

static inline bool rig_asks_own(const char *variable)
{
    const char *asked = getenv(variable);
    return asked && strcmp(asked, "own") == 0;
}

/* With SIFR_CUDA_SWIGLU=own or SIFR_CUDA_DW=own, in 16 bits and on compute capability 9.0, the back
 * end itself computes such aligned products: otherwise a test of them would be one of the library's.
 */
static inline void rig_check_own(const struct rig *rig)
{
    const struct ops *ops = rig->ops;
    const struct linear l = {.in = 64, .out = 72, .y_stride = 72};
    if (device_capability(rig->device) != 90 || (ops->type != DTYPE_BF16 && ops->type != DTYPE_F16))
        return;
    if (rig_asks_own("SIFR_CUDA_SWIGLU")) {
        assert_true(ops->backend->takes_swiglu(ops, 97, 64, 72, false));
        assert_true(ops->backend->takes_swiglu(ops, 97, 64, 72, true));
    }
    if (rig_asks_own("SIFR_CUDA_DW"))
        assert_true(ops_sums_dw(ops, l, 97, ops->type, false));
}

static inline struct ops_trial *rig_trial(struct rig *rig, const struct ops_case *c)
{
    struct ops_trial *trial;
    assert_ok(ops_trial_create(rig->ops, rig->stream, c, 7, &trial));
    return trial;
}

#endif
