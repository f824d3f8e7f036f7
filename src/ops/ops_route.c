/* ops_route -- the faces of SARS's routing. */
#include "ops/ops_face.h"

static void check_routing(struct routing n, int64_t rows)
{
    CHECK_LT(0, n.in);
    CHECK_LT(0, n.groups);
    CHECK(0 < n.width && n.width <= OPS_ROUTE_WIDTH);
    CHECK_LT(0, rows);
}

void ops_mas(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
             const void *gate, void *cost)
{
    CHECK(groups > 0 && width > 0 && gate && cost);
    if (ops_must_run(ops, stream, CASE("mas", .routing = {.groups = groups, .width = width})))
        ops->backend->mas(ops, stream, groups, width, gate, cost);
}

void ops_mas_backward(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
                      const void *gate, const float *dcost, void *dgate)
{
    CHECK(groups > 0 && width > 0 && gate && dcost && dgate);
    if (ops_must_run(ops, stream,
                     CASE("mas_backward", .routing = {.groups = groups, .width = width})))
        ops->backend->mas_backward(ops, stream, groups, width, gate, dcost, dgate);
}

void ops_route(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
               const struct route *a)
{
    check_routing(n, rows);
    CHECK(a->pre && a->match && a->cost && a->logits && a->out && a->logits != a->out);
    if (ops_must_run(ops, stream, CASE("route", .rows = rows, .routing = n)))
        ops->backend->route(ops, stream, n, rows, a);
}

void ops_route_backward(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
                        const struct route_backward *a)
{
    check_routing(n, rows);
    CHECK(a->x && a->dout && a->pre && a->logits && a->dpre && a->dmatch && a->scratch);
    CHECK(a->goodness && a->active && a->dcost && a->entropy && a->dpre != a->dmatch);
    if (ops_must_run(ops, stream, CASE("route_backward", .rows = rows, .routing = n)))
        ops->backend->route_backward(ops, stream, n, rows, a);
}

size_t ops_route_scratch(const struct ops *ops, struct routing n, int64_t rows)
{
    check_routing(n, rows);
    return ops->backend->route_scratch(ops, n, rows);
}

void ops_gate_rows(struct ops *ops, struct stream *stream, enum dtype type,
                   const struct gate_rows *a)
{
    CHECK(ops_is_f32_or_narrower(type));
    CHECK(a->first >= 0 && a->count >= 0 && a->limit > 0);
    CHECK((a->goodness != NULL) == (a->columns > 0));
    CHECK(a->count == 0 || a->x);
    if (a->count > 0 && ops_must_run(ops, stream,
                                     CASE("gate_rows", .count = a->count, .first = a->first,
                                          .width = a->columns, .from = type)))
        ops->backend->gate_rows(ops, stream, type, a);
}
