/* powers -- 2^x, log2(x) and 1 / x by the GPU's approximations, for softmax and its like. */
#ifndef OPS_CUDA_POWERS_CUH
#define OPS_CUDA_POWERS_CUH

static __device__ inline float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline float logarithm_of_two(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Off by one unit in the last place at most; 0 for infinity. */
static __device__ inline float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
