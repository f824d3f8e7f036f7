/* powers -- 2^x and log2(x) by the GPU's approximations, for softmax in powers of two. */
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

#endif
