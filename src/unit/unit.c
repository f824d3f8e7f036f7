/* unit -- counts over the tables of a graph, side streams, and the check that a graph is
 * consistent. */
#include "unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

const char *pass_word(enum pass pass)
{
    static const char *const words[PASS_COUNT] = {[PASS_FORWARD] = "forward",
                                                  [PASS_REBUILD] = "rebuild",
                                                  [PASS_BACKWARD] = "backward",
                                                  [PASS_BACKWARD_INPUT] = "backward input",
                                                  [PASS_BACKWARD_WEIGHT] = "backward weight",
                                                  [PASS_LOSS] = "loss",
                                                  [PASS_EVAL] = "eval",
                                                  [PASS_LOGITS] = "logits",
                                                  [PASS_DECODE] = "decode"};
    CHECK_LT((unsigned)pass, PASS_COUNT);
    return words[pass];
}

int64_t unit_stream_rows(struct unit_shape shape)
{
    int64_t rows = shape.batch * shape.tokens, ranks = shape.sequence > 0 ? shape.sequence : 1;
    CHECK_EQ(rows % ranks, 0);
    return rows / ranks;
}

/* --- tensors and their parts ---------------------------------------------------------------- */

int64_t unit_tensor_whole(const struct unit_tensor *tensor)
{
    int64_t count = 1;
    for (int d = 0; d < tensor->dims; d++)
        count *= tensor->shape[d];
    return count;
}

static int64_t lead_of(const struct unit_split *split)
{
    return split->lead > 0 ? split->lead : 1;
}

/* The parts of a unit in all sections, if one of them in the sections that are not the first is 1. */
static int64_t parts_of(const struct unit_split *split)
{
    return split->sections + lead_of(split) - 1;
}

struct unit_lines unit_tensor_lines(const struct unit_tensor *tensor)
{
    const struct unit_split *s = &tensor->split;
    int64_t unit = tensor->shape[s->dim] / (parts_of(s) * s->units);
    for (int d = s->dim + 1; d < tensor->dims; d++)
        unit *= tensor->shape[d];
    return (struct unit_lines){s->count * unit, s->units * unit, s->first * unit, lead_of(s)};
}

int64_t unit_tensor_count(const struct unit_tensor *tensor)
{
    int64_t whole = unit_tensor_whole(tensor);
    return tensor->split.units == 0 ? whole : whole / tensor->split.units * tensor->split.count;
}

int64_t unit_tensor_index(const struct unit_tensor *tensor, int64_t local, int64_t *run)
{
    int64_t left = unit_tensor_count(tensor) - local, index = local;
    if (tensor->split.units != 0) {
        struct unit_lines l = unit_tensor_lines(tensor);
        int64_t first = l.lead * l.run; /* elements of the first line */
        index = local < first ? l.lead * l.start + local
                              : local / l.run * l.line + l.start + local % l.run;
        if (l.run != l.line)
            left = local < first ? first - local : l.run - local % l.run;
    }
    if (run)
        *run = left;
    return index;
}

int64_t unit_tensor_before(const struct unit_tensor *tensor, int64_t index)
{
    if (tensor->split.units == 0)
        return index;
    struct unit_lines l = unit_tensor_lines(tensor);
    int64_t line = index / l.line, scale = 1;
    if (line < l.lead) {
        line = 0;
        scale = l.lead;
    }
    int64_t in_run = index - line * l.line - scale * l.start, run = scale * l.run;
    in_run = in_run < 0 ? 0 : in_run < run ? in_run : run;
    return line * l.run + in_run;
}

bool unit_tensor_answers(const struct unit_tensor *tensor)
{
    return tensor->split.replica == 0;
}

int64_t unit_param_count(const struct unit_graph *graph, int param)
{
    const struct unit_param *p = &graph->params[param];
    int64_t count = 0;
    for (int t = 0; t < p->tensor_count; t++)
        count += unit_tensor_count(&graph->tensors[p->first_tensor + t]);
    return count;
}

int64_t unit_param_whole(const struct unit_graph *graph, int param)
{
    const struct unit_param *p = &graph->params[param];
    int64_t count = 0;
    for (int t = 0; t < p->tensor_count; t++)
        count += unit_tensor_whole(&graph->tensors[p->first_tensor + t]);
    return count;
}

static bool is_uneven(const struct unit_tensor *tensor)
{
    return tensor->split.units != 0 && tensor->split.most != 0;
}

/* Only the last tensor of a param may be cut unevenly, so only it can need padding. */
int64_t unit_param_room(const struct unit_graph *graph, int param)
{
    const struct unit_param *p = &graph->params[param];
    const struct unit_tensor *last = &graph->tensors[p->first_tensor + p->tensor_count - 1];
    int64_t count = unit_param_count(graph, param), unit = 0;
    if (is_uneven(last))
        unit = unit_tensor_whole(last) / last->split.units;
    return count + (last->split.most - last->split.count) * unit;
}

int64_t unit_piece_blocks(const struct unit_graph *graph, int piece)
{
    const struct unit_piece *p = &graph->pieces[piece];
    int64_t blocks = 0;
    for (int i = p->first_param; i < p->first_param + p->param_count; i++)
        blocks += (unit_param_room(graph, i) + OPS_BLOCK - 1) / OPS_BLOCK;
    return blocks;
}

/* Params follow each other in the order of their tensors. */
int unit_param_of(const struct unit_graph *graph, int tensor)
{
    int low = 0, high = graph->param_count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (graph->params[middle].first_tensor <= tensor)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int64_t unit_graph_count(const struct unit_graph *graph)
{
    int64_t count = 0;
    for (int t = 0; t < graph->tensor_count; t++)
        count += unit_tensor_whole(&graph->tensors[t]);
    return count;
}

bool unit_reads(const struct unit *unit, enum pass pass, int use)
{
    return unit->type->reads[pass] >> use & 1;
}

bool unit_writes(const struct unit *unit, enum pass pass, int use)
{
    return unit_written_uses(unit, pass) >> use & 1;
}

uint32_t unit_written_uses(const struct unit *unit, enum pass pass)
{
    return unit->type->writes[pass] & ~unit->frozen;
}

bool unit_is_frozen(const struct unit *unit)
{
    return unit->frozen == (1u << unit->use_count) - 1;
}

int unit_pieces(const struct unit_graph *graph, int u, int pieces[UNIT_MAX_USES])
{
    const struct unit *unit = &graph->units[u];
    int count = 0;
    for (int use = 0; use < unit->use_count; use++) {
        int piece = graph->params[unit->uses[use]].piece, at = count;
        while (at > 0 && pieces[at - 1] > piece)
            at--;
        if (at > 0 && pieces[at - 1] == piece)
            continue;
        memmove(pieces + at + 1, pieces + at, (size_t)(count - at) * sizeof *pieces);
        pieces[at] = piece;
        count++;
    }
    return count;
}

bool unit_uses_piece(const struct unit_graph *graph, int u, uint32_t uses, int piece)
{
    const struct unit *unit = &graph->units[u];
    for (int use = 0; use < unit->use_count; use++)
        if (uses >> use & 1 && graph->params[unit->uses[use]].piece == piece)
            return true;
    return false;
}

int64_t unit_in_width(const struct unit_graph *graph, int u)
{
    int64_t width = graph->units[u].in_width;
    return width > 0 ? width : graph->stream_width;
}

int64_t unit_out_width(const struct unit_graph *graph, int u)
{
    int64_t width = graph->units[u].out_width;
    return width > 0 ? width : graph->stream_width;
}

/* Bit p: uses[p] has a param of the piece. */
static uint32_t passes_with(const struct unit_graph *graph, int u, const uint32_t uses[PASS_COUNT],
                            int piece)
{
    uint32_t passes = 0;
    for (int pass = 0; pass < PASS_COUNT; pass++)
        if (unit_uses_piece(graph, u, uses[pass], piece))
            passes |= 1u << pass;
    return passes;
}

uint32_t unit_reading_passes(const struct unit_graph *graph, int u, int piece)
{
    return passes_with(graph, u, graph->units[u].type->reads, piece);
}

uint32_t unit_writing_passes(const struct unit_graph *graph, int u, int piece)
{
    uint32_t written[PASS_COUNT];
    for (int pass = 0; pass < PASS_COUNT; pass++)
        written[pass] = unit_written_uses(&graph->units[u], pass);
    return passes_with(graph, u, written, piece);
}

bool unit_writes_piece(const struct unit_graph *graph, int u, int piece)
{
    return unit_writing_passes(graph, u, piece) != 0;
}

bool unit_share_param(const struct unit_graph *graph, int u, int v, int piece)
{
    const struct unit *a = &graph->units[u], *b = &graph->units[v];
    for (int i = 0; i < a->use_count; i++)
        for (int k = 0; k < b->use_count; k++)
            if (a->uses[i] == b->uses[k] && graph->params[a->uses[i]].piece == piece)
                return true;
    return false;
}

void unit_find_frozen(const struct unit_graph *graph, bool *frozen)
{
    int pieces[UNIT_MAX_USES];
    for (int i = 0; i < graph->piece_count; i++)
        frozen[i] = true;
    for (int u = 0; u < graph->unit_count; u++)
        for (int k = unit_pieces(graph, u, pieces) - 1; k >= 0; k--)
            if (unit_writes_piece(graph, u, pieces[k]))
                frozen[pieces[k]] = false;
}

enum unit_phase unit_param_phase(const struct unit_graph *graph, int param)
{
    return graph->tensors[graph->params[param].first_tensor].phase;
}

bool unit_has_phase(const struct unit_graph *graph, enum unit_phase phase)
{
    for (int p = 0; p < graph->param_count; p++)
        if (unit_param_phase(graph, p) == phase)
            return true;
    return false;
}

bool unit_has_parts(const struct unit *unit)
{
    return unit->type->run[PASS_BACKWARD_INPUT] != NULL;
}

void unit_run_pass(const struct unit *unit, enum pass pass, struct unit_run *run)
{
    CHECK(unit->type->run[pass] != NULL);
    run->pass = pass;
    unit->type->run[pass](unit, run);
}

int64_t unit_work(const struct unit *unit, struct unit_shape shape)
{
    int64_t work = unit->type->work ? unit->type->work(unit, shape) : 0;
    return work > 0 ? work : 1;
}

/* --- side streams ----------------------------------------------------------------------------- */

enum status unit_side_stream_create(struct device *device, struct comm *group,
                                    struct unit_side_stream **side_stream)
{
    struct unit_side_stream *b;
    enum status st;
    TRY(mem_alloc(device_env(device), MEM_OTHER, "engine", sizeof *b, &b));
    *b = (struct unit_side_stream){0};
    TRY_OR(undo, comm_stream_create(group, "tensor", &b->stream));
    TRY_OR(undo, event_create(device, &b->written));
    for (int call = 0; call < UNIT_CALLS; call++)
        TRY_OR(undo, event_create(device, &b->done[call]));
    *side_stream = b;
    return STATUS_OK;
undo:
    unit_side_stream_destroy(device, b);
    return st;
}

void unit_side_stream_destroy(struct device *device, struct unit_side_stream *side_stream)
{
    if (!side_stream)
        return;
    stream_destroy(side_stream->stream);
    event_destroy(side_stream->written);
    for (int call = 0; call < UNIT_CALLS; call++)
        event_destroy(side_stream->done[call]);
    mem_free(device_env(device), side_stream);
}

/* --- the check ----------------------------------------------------------------------------------
 */

_Noreturn static void inconsistent(const char *name, const char *why)
{
    fprintf(stderr, "sifr: the model's tables are inconsistent: '%s' %s\n", name, why);
    abort();
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct unit_tensor *const *)a)->name,
                  (*(const struct unit_tensor *const *)b)->name);
}

static void check_names_unique(const struct unit_graph *graph)
{
    const struct unit_tensor **sorted = malloc((size_t)graph->tensor_count * sizeof *sorted);
    CHECK(sorted != NULL);
    for (int t = 0; t < graph->tensor_count; t++)
        sorted[t] = &graph->tensors[t];
    qsort(sorted, (size_t)graph->tensor_count, sizeof *sorted, compare_names);
    for (int t = 1; t < graph->tensor_count; t++)
        if (strcmp(sorted[t - 1]->name, sorted[t]->name) == 0)
            inconsistent(sorted[t]->name, "names two tensors");
    free(sorted);
}

static void check_split(const struct unit_tensor *tensor)
{
    const struct unit_split *s = &tensor->split;
    if (s->replica < 0 || s->replica >= (s->replicas > 0 ? s->replicas : 1))
        inconsistent(tensor->name, "has a replica number that is out of range");
    if (s->units == 0)
        return;
    if (s->dim < 0 || s->dim >= tensor->dims || s->sections < 1 || s->units < 1 ||
        tensor->shape[s->dim] % (parts_of(s) * s->units) != 0)
        inconsistent(tensor->name, "is cut along a dimension that its units do not divide");
    if (s->first < 0 || s->count < 1 || s->first + s->count > s->units)
        inconsistent(tensor->name, "has a part outside the whole tensor");
    if (s->lead > 1 && (s->dim != 0 || s->sections < 2 || s->most != 0 || s->replicas > 1))
        inconsistent(tensor->name, "has a larger first section, but is not cut evenly in rows");
    if (s->most != 0 && s->most < s->count)
        inconsistent(tensor->name, "has more units than the largest part");
}

static void check_rules(const struct unit_graph *graph, const struct unit_tensor *tensor,
                        enum unit_phase phase)
{
    if (tensor->phase != phase)
        inconsistent(tensor->name, "has another phase than the first tensor of its param");
    if (tensor->gated && (tensor->gate < 0 || tensor->gate + tensor->shape[0] > graph->statistics))
        inconsistent(tensor->name, "has a gate outside the model's statistic");
    if (!(tensor->limit >= 0))
        inconsistent(tensor->name, "has a negative limit");
}

static void check_tensors(const struct unit_graph *graph)
{
    int next_tensor = 0;
    for (int t = 0; t < graph->tensor_count; t++)
        check_split(&graph->tensors[t]);
    for (int p = 0; p < graph->param_count; p++) {
        const struct unit_param *param = &graph->params[p];
        const char *name = graph->tensors[param->first_tensor].name;
        if (param->first_tensor != next_tensor || param->tensor_count < 1)
            inconsistent(name, "does not follow the tensors of the param before it");
        for (int t = 0; t < param->tensor_count; t++)
            check_rules(graph, &graph->tensors[next_tensor + t], unit_param_phase(graph, p));
        for (int t = 0; t < param->tensor_count - 1; t++)
            if (is_uneven(&graph->tensors[next_tensor + t]))
                inconsistent(name, "is cut unevenly but is not the last tensor of its param");
        next_tensor += param->tensor_count;
        if (unit_param_count(graph, p) < 1)
            inconsistent(name, "is empty");
    }
    CHECK_EQ(next_tensor, graph->tensor_count);
}

static void check_pieces(const struct unit_graph *graph)
{
    int next_param = 0;
    for (int i = 0; i < graph->piece_count; i++) {
        const struct unit_piece *piece = &graph->pieces[i];
        if (piece->first_param != next_param || piece->param_count < 1)
            inconsistent(piece->name, "does not follow the params of the piece before it");
        for (int p = next_param; p < next_param + piece->param_count; p++)
            CHECK_EQ(graph->params[p].piece, i);
        next_param += piece->param_count;
    }
    CHECK_EQ(next_param, graph->param_count);
}

static void check_parts(const struct unit *unit)
{
    const struct unit_type *type = unit->type;
    if (!type->run[PASS_BACKWARD_INPUT] != !type->run[PASS_BACKWARD_WEIGHT])
        inconsistent(unit->name, "has only one part of a split backward pass");
    if (type->writes[PASS_BACKWARD_INPUT] != 0 || type->reads[PASS_BACKWARD_WEIGHT] != 0)
        inconsistent(unit->name,
                     "writes gradients in backward-input or reads params in backward-weight");
    if (type->run[PASS_BACKWARD_WEIGHT] &&
        type->writes[PASS_BACKWARD_WEIGHT] != type->writes[PASS_BACKWARD])
        inconsistent(unit->name, "writes other gradients in backward-weight than in backward");
}

static void check_units(const struct unit_graph *graph)
{
    for (int u = 0; u < graph->unit_count; u++) {
        const struct unit *unit = &graph->units[u];
        bool last = u == graph->unit_count - 1 && (!graph->part || unit->type->run[PASS_LOSS]);
        CHECK_LE(unit->use_count, UNIT_MAX_USES);
        for (int i = 0; i < unit->use_count; i++)
            if (unit->uses[i] < 0 || unit->uses[i] >= graph->param_count)
                inconsistent(unit->name, "uses a param that does not exist");
        check_parts(unit);
        if (unit->type->takes_carry && (u == 0 || graph->carry == 0))
            inconsistent(unit->name, "takes a carry, but the graph has no carry");
        if (last && !unit->type->run[PASS_LOSS])
            inconsistent(unit->name, "is the last unit and has no loss pass");
        if (!last && (!unit->type->run[PASS_FORWARD] || !unit->type->run[PASS_BACKWARD]))
            inconsistent(unit->name, "lacks a forward or backward pass");
    }
}

void unit_graph_check(const struct unit_graph *graph)
{
    CHECK_LT(0, graph->unit_count);
    CHECK_LT(0, graph->stream_width);
    check_tensors(graph);
    check_names_unique(graph);
    check_pieces(graph);
    check_units(graph);
}
