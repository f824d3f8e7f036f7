/* unit_freeze -- matches tensors, then marks the uses of frozen params, then splits pieces. */
#include "unit/unit_freeze.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/env.h"

enum { GLOB = 256 };

/* Set frozen (tensors) where `glob` matches. */
static enum status match(struct env *env, const char *glob, const struct unit_graph *graph,
                         bool *frozen)
{
    int matched = 0;
    for (int t = 0; t < graph->tensor_count; t++)
        if (fnmatch(glob, graph->tensors[t].name, 0) == 0)
            frozen[t] = true, matched++;
    if (matched == 0)
        return FAIL(env, CONFIG, "train.freeze: '%s' matches no parameter; names look like '%s'",
                    glob, graph->tensors[graph->tensor_count - 1].name);
    return STATUS_OK;
}

static enum status match_all(struct env *env, const char *globs, const struct unit_graph *graph,
                             bool *frozen)
{
    for (const char *at = globs;; at++) {
        char glob[GLOB];
        size_t length = strcspn(at, ",");
        if (length == 0 || length >= sizeof glob)
            return FAIL(env, CONFIG,
                        "train.freeze: '%s' has an empty or overlong glob; separate globs by one "
                        "comma",
                        globs);
        memcpy(glob, at, length);
        glob[length] = '\0';
        TRY(match(env, glob, graph, frozen));
        at += length;
        if (*at == '\0')
            return STATUS_OK;
    }
}

/* The tensors of a param are one matrix for the passes, with one gradient. */
static enum status check_params(struct env *env, const struct unit_graph *graph, const bool *frozen)
{
    bool learned = false;
    for (int p = 0; p < graph->param_count; p++) {
        int first = graph->params[p].first_tensor;
        learned = learned || !frozen[first];
        for (int t = first + 1; t < first + graph->params[p].tensor_count; t++)
            if (frozen[t] != frozen[first])
                return FAIL(env, CONFIG,
                            "train.freeze: '%s' would be frozen, '%s' would not; they are computed "
                            "as one matrix: freeze both or neither",
                            graph->tensors[frozen[t] ? t : first].name,
                            graph->tensors[frozen[t] ? first : t].name);
    }
    if (!learned)
        return FAIL(env, CONFIG,
                    "train.freeze: every parameter would be frozen; leave some to be trained");
    return STATUS_OK;
}

static void mark_uses(const struct unit_graph *graph, const bool *frozen, struct unit *units)
{
    for (int u = 0; u < graph->unit_count; u++)
        for (int i = 0; i < units[u].use_count; i++)
            if (frozen[graph->params[units[u].uses[i]].first_tensor])
                units[u].frozen |= 1u << i;
}

/* The first unit that writes a gradient. The last one always has a loss. */
static int first_learning(const struct unit_graph *graph, const struct unit *units)
{
    int u = 0;
    while (u < graph->unit_count - 1 && unit_is_frozen(&units[u]))
        u++;
    return u;
}

/* Split pieces where frozen params begin or end. `old` is a copy of the pieces. */
static void split(struct unit_graph *graph, const bool *frozen, const struct unit_piece *old,
                  struct unit_param *params, struct unit_piece *pieces)
{
    int count = 0;
    for (int i = 0; i < graph->piece_count; i++) {
        int first = old[i].first_param;
        for (int p = first; p < first + old[i].param_count; p++) {
            bool state = frozen[params[p].first_tensor];
            if (p == first || state != frozen[params[p - 1].first_tensor]) {
                pieces[count] = (struct unit_piece){.first_param = p};
                snprintf(pieces[count].name, UNIT_NAME, "%.60s%s", old[i].name,
                         state ? " frozen" : "");
                count++;
            }
            pieces[count - 1].param_count++;
            params[p].piece = count - 1;
        }
    }
    graph->piece_count = count;
}

enum status unit_freeze(struct env *env, const char *globs, struct unit_graph *graph,
                        struct unit_param *params, struct unit_piece *pieces, struct unit *units)
{
    size_t count = (size_t)graph->piece_count;
    struct unit_piece *old = NULL;
    bool *frozen = NULL;
    enum status st;
    TRY_OR(done, mem_alloc_array(env, MEM_OTHER, "frozen tensors", (size_t)graph->tensor_count,
                                 sizeof *frozen, &frozen));
    TRY_OR(done, mem_alloc_array(env, MEM_OTHER, "frozen pieces", count, sizeof *old, &old));
    TRY_OR(done, match_all(env, globs, graph, frozen));
    TRY_OR(done, check_params(env, graph, frozen));
    memcpy(old, pieces, count * sizeof *old);
    mark_uses(graph, frozen, units);
    split(graph, frozen, old, params, pieces);
    graph->backward_from = first_learning(graph, units);
done:
    mem_free(env, old);
    mem_free(env, frozen);
    return st;
}
