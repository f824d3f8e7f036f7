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

/* With SIFR_CUDA_SWIGLU=own, in 16 bits and on compute capability 9.0, the back end itself computes
 * aligned products with SwiGLU: otherwise a test of them would be one of the library's. */
static inline void rig_check_own(const struct rig *rig)
{
    const struct ops *ops = rig->ops;
    const char *asked = getenv("SIFR_CUDA_SWIGLU");
    struct device_cuda_info info;
    if (!asked || strcmp(asked, "own") != 0 || (ops->type != DTYPE_BF16 && ops->type != DTYPE_F16))
        return;
    device_cuda_info(&info);
    if (info.gpu_count > 0 && info.gpus[0].capability == 90) {
        assert_true(ops->backend->takes_swiglu(ops, 97, 64, 72, false));
        assert_true(ops->backend->takes_swiglu(ops, 97, 64, 72, true));
    }
}

static inline struct ops_trial *rig_trial(struct rig *rig, const struct ops_case *c)
{
    struct ops_trial *trial;
    assert_ok(ops_trial_create(rig->ops, rig->stream, c, 7, &trial));
    return trial;
}

#endif
