/* fake_ops -- the reference under the name of a GPU's maths, for plans on a GPU made of threads
 * (tests/device/fake_gpu.c): nothing is computed with it. */
#include "ops/ops_impl.h"

__attribute__((visibility("default"))) ops_fill_fn sifr_ops_cuda_fill;
void sifr_ops_cuda_fill(struct ops_backend *table)
{
    table->name = "cuda";
    table->on_host = false;
}
