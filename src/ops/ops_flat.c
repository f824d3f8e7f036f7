/* ops_flat -- the faces of flat ranges: casts, sums of squares, updates of parameters. */
#include "ops/ops_face.h"

void ops_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
              const void *src, enum dtype src_type, int64_t count)
{
    CHECK_LE(0, count);
    CHECK(ops_is_real(dst_type) && ops_is_real(src_type));
    CHECK(count == 0 || (dst && src));
    if (count > 0 &&
        ops_must_run(ops, stream, CASE("cast", .count = count, .from = src_type, .to = dst_type)))
        ops->backend->cast(ops, stream, dst, dst_type, src, src_type, count);
}

void ops_square_sums(struct ops *ops, struct stream *stream, enum dtype type,
                     const struct square_range *ranges, int range_count)
{
    int64_t total = 0;
    CHECK_LE(0, range_count);
    CHECK(ops_is_f32_or_narrower(type));
    for (int i = 0; i < range_count; i++) {
        CHECK_LE(0, ranges[i].count);
        total += ranges[i].count;
        CHECK(ranges[i].count == 0 || (ranges[i].x && ranges[i].sums));
    }
    if (range_count > 0 &&
        ops_must_run(ops, stream, CASE("square_sums", .count = total, .from = type)))
        ops->backend->square_sums(ops, stream, type, ranges, range_count);
}

void ops_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type, const void *x,
                        int64_t count, int64_t *first)
{
    CHECK_LE(0, count);
    CHECK(ops_is_f32_or_narrower(type));
    CHECK((count == 0 || x) && first);
    if (ops_must_run(ops, stream, CASE("find_nonfinite", .count = count, .from = type, .bad = -1)))
        ops->backend->find_nonfinite(ops, stream, type, x, count, first);
}

const char *update_word(enum update_rule rule)
{
    static const char *const words[] = {[UPDATE_ADAMW] = "adamw",
                                        [UPDATE_ADAMW8] = "adamw8",
                                        [UPDATE_SGD] = "sgd",
                                        [UPDATE_MUON] = "muon",
                                        [UPDATE_APPLY] = "apply"};
    return words[rule];
}

void ops_check_segment(const struct update *update, const struct update_segment *s)
{
    enum update_rule rule = update->rule;
    CHECK_LE(0, s->count);
    CHECK(s->copy == NULL || ops_is_real(s->copy_type));
    CHECK(ops_is_f32_or_narrower(s->grad_type));
    if (s->count == 0)
        return;
    CHECK(s->grad && (s->param || rule == UPDATE_MUON));
    CHECK(s->m || rule == UPDATE_SGD || rule == UPDATE_APPLY);
    CHECK(s->v || (rule != UPDATE_ADAMW && rule != UPDATE_ADAMW8));
    CHECK(s->copy || rule != UPDATE_MUON);
    CHECK(rule != UPDATE_ADAMW8 || (s->m_scale && s->v_scale));
    CHECK(s->skip >= 0 && s->skip < OPS_BLOCK);
}

void ops_update(struct ops *ops, struct stream *stream, const struct update *update,
                const struct step_scalars *scalars, const struct update_segment *segments,
                int segment_count)
{
    CHECK_LE(0, segment_count);
    CHECK(scalars && (segment_count == 0 || segments));
    CHECK(stream_device(stream) == ops->device);
    if (!device_is_dry(ops->device) && !stream_failed(stream) && segment_count > 0)
        ops->backend->update(ops, stream, update, scalars, segments, segment_count);
}

/* Updates use no library, so nothing is opened. */
void ops_update_on_host(int threads, const struct update *update,
                        const struct step_scalars *scalars, const struct update_segment *segments,
                        int segment_count)
{
    struct ops_backend table;
    CHECK(threads > 0 && segment_count >= 0);
    CHECK(scalars && (segment_count == 0 || segments));
    ops_ref_fill(&table, DTYPE_F32);
    ops_cpu_fill(&table);
    struct ops cpu = {.backend = &table, .type = DTYPE_F32, .threads = threads};
    table.update(&cpu, NULL, update, scalars, segments, segment_count);
}

void ops_orthogonalize(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                       void *x, void *scratch)
{
    CHECK(rows > 0 && columns > 0 && x && scratch);
    if (ops_must_run(ops, stream, CASE("orthogonalize", .rows = rows, .width = columns)))
        ops->backend->orthogonalize(ops, stream, rows, columns, x, scratch);
}

size_t ops_orthogonalize_scratch(const struct ops *ops, int64_t rows, int64_t columns)
{
    return ops->backend->orthogonalize_scratch(ops, rows, columns);
}
