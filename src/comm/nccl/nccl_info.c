/* nccl_info -- the version of the NCCL library that is loaded. */
#include <nccl.h>
#include "device/cuda/cuda.h"

CUDA_ENTRY device_nccl_look_fn sifr_nccl_look;
int sifr_nccl_look(void)
{
    int version = 0;
    return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}
