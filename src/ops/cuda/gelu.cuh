/* gelu -- the one expression for GELU (tanh form), and the terms of its derivative. */
#ifndef OPS_CUDA_GELU_CUH
#define OPS_CUDA_GELU_CUH
#include "ops/cuda/common/vector.cuh"

#define GELU_CUBE 0.044715f
#define GELU_RATE 0.79788456080286535588f /* sqrt(2 / pi) */

/* 0.5 (1 + tanh u) = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): free of cancellation */
template <typename T> static __device__ inline float gelu_exp(float x)
{
    float cubic = fma_(mul(mul(GELU_CUBE, x), x), x, x);
    return exponential<T>(fminf(mul(-2 * GELU_RATE, cubic), 80.0f));
}

template <typename T> static __device__ inline float gelu_value(float x)
{
    return __fdividef(x, add(1.0f, gelu_exp<T>(x)));
}

#endif
