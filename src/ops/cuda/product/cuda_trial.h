/* cuda_trial -- operands of a product's shape on which its algorithms are tried, so that nothing
 * of the call is read or written.
 *
 * Their memory is allocated when a shape is first seen and freed right after the trial. It is not
 * accounted, since later steps do not have it, and is never more than half of the GPU's free
 * memory. Where that is too little there is no trial, and the first algorithm stays.
 */
#ifndef OPS_CUDA_CUDA_TRIAL_H
#define OPS_CUDA_CUDA_TRIAL_H
#include "ops/cuda/product/cuda_product.h"

struct trial {
    enum dtype type;
    struct product product;
    struct operands operands; /* aligned exactly like the call's */
    cudaStream_t stream;      /* borrowed; all work of a trial is on it */
    cudaMemPool_t pool;       /* the GPU's */
    void *memory;
    unsigned long long *sums; /* of a fingerprint */
};

enum { TRIAL_OUTPUTS = 2 };
/* Of everything a product writes: D and aux; zeros for what it does not write. */
struct fingerprint {
    unsigned long long sums[TRIAL_OUTPUTS][2];
};

/* `alignment` of a, b, d, `side_alignment` of bias and aux: powers of two up to 256. Fills the
 * inputs with noise (ops_noise.h). False: not enough memory, or a CUDA error; nothing is left
 * behind. */
bool trial_open(struct trial *trial, const struct ops *ops, struct product product,
                int32_t alignment, int32_t side_alignment, cudaStream_t stream);
void trial_close(struct trial *trial); /* waits for the stream */
/* Call before a run whose result is compared: restores the sum that is added to, and fills
 * overwritten outputs with NaNs. */
bool trial_reset(struct trial *trial);
/* The fingerprint of what the last run wrote; waits for the stream. */
bool trial_read(struct trial *trial, struct fingerprint *fingerprint);

#endif
