/* fake_ops -- the reference under the name "cuda", for plans on the fake GPU
 * (tests/device/fake_gpu.c). Nothing is computed with it. */
#include "ops/ops_impl.h"

__attribute__((visibility("default"))) ops_fill_fn sifr_ops_cuda_fill;
void sifr_ops_cuda_fill(struct ops_backend *table)
{
    table->name = "cuda";
    table->on_host = false;
}
