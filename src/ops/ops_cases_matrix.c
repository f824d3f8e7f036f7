/* ops_cases_matrix -- description of the orthogonalization of a matrix. */
#include "ops/ops_cases_impl.h"
#include "ops/ops_impl.h"

OPS_DESCRIBE(orthogonalize)
{
    double rows = (double)c->rows, columns = (double)c->width;
    double n = rows < columns ? rows : columns;
    ops_add_tensor(call, "x", OPS_IN_OUT, ops->type, c->rows * c->width);
    ops_add_scratch(call, ops_orthogonalize_scratch(ops, c->rows, c->width));
    /* Whole products, although two of the three in a turn are symmetric. */
    call->flops = OPS_NEWTON_SCHULZ * (4 * n * rows * columns + 2 * n * n * n);
}

OPS_RUN(orthogonalize)
{
    ops_orthogonalize(ops, stream, c->rows, c->width, ops_at(call, "x"), ops_at(call, "scratch"));
}
