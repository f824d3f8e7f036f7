/* cuda_trial -- operands of a product's own shape on which its algorithms are tried, so that
 * nothing of the call is read or written.
 *
 * Their memory is taken when a shape is first met and given back at once: it is not in the
 * account, since the next step has none of it, and it is never more than half of what the GPU
 * has left. Where that is too little there is no trial, and the first algorithm stays.
 */
#ifndef OPS_CUDA_CUDA_TRIAL_H
#define OPS_CUDA_CUDA_TRIAL_H
#include "ops/cuda/product/cuda_product.h"

struct trial {
    enum dtype type;
    struct product product;
    struct operands operands; /* aligned as the call's, no better */
    cudaStream_t stream;      /* borrowed; all work of a trial is on it */
    cudaMemPool_t pool;       /* the GPU's */
    void *memory;
    unsigned long long *sums; /* of a fingerprint */
};

enum { TRIAL_OUTPUTS = 3 };
struct fingerprint { /* of all that a product writes: D, bias, aux; zeros of what it does not */
    unsigned long long sums[TRIAL_OUTPUTS][2];
};

/* `alignment` of a, b, d, `side_alignment` of bias and aux: powers of two up to 256. The factors
 * and what else is read are filled with noise (ops_noise.h). False: no room, or the GPU refuses,
 * and nothing is left behind. */
bool trial_open(struct trial *trial, const struct ops *ops, struct product product,
                int32_t alignment, int32_t side_alignment, cudaStream_t stream);
void trial_close(struct trial *trial); /* waits for the stream */
/* Before a call whose result is looked at: what it adds to, or NaNs where it overwrites. */
bool trial_reset(struct trial *trial);
/* Of what the last call wrote; waits for the stream. */
bool trial_read(struct trial *trial, struct fingerprint *fingerprint);

#endif
