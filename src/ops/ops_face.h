/* ops_face -- what the faces of ops/ops.h share; for src/ops only.
 *
 * A face checks what is cheap to check (shapes, missing pointers, the stream's device), also on a
 * dry device, so that `sifr plan` detects a wrong shape too. It then does nothing on a stream that
 * has failed, and on a dry device it only spends time if there is a meter. Back ends check values
 * (tokens, labels).
 */
#ifndef OPS_OPS_FACE_H
#define OPS_OPS_FACE_H
#include "ops/ops_impl.h"

/* Returns true if the back end must run the call. On a dry device the call's time is spent instead,
 * and on a stream that has failed nothing is done. */
bool ops_must_run(struct ops *ops, struct stream *stream, const struct ops_case *c);

static inline bool ops_is_real(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64;
}

static inline bool ops_is_f32_or_narrower(enum dtype type)
{
    return ops_is_real(type) && type != DTYPE_F64;
}

/* Host back ends run immediately, so the value in memory is read here. */
static inline struct past ops_resolve_past(const struct ops *ops, struct past past)
{
    return past.at && device_on_host(ops->device) ? (struct past){.count = *past.at} : past;
}

#define CASE(...) (&(const struct ops_case){__VA_ARGS__})

#endif
