#include "train/weights/tensor_names.h"
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct tensor_name *)a)->name, ((const struct tensor_name *)b)->name);
}

static void add(struct tensor_names *names, const char *name, int tensor)
{
    names->list[names->count++] = (struct tensor_name){name, tensor};
}

enum status tensor_names_create(struct env *env, const struct unit_graph *graph,
                                const char *(*also)(const char *name), struct tensor_names *names)
{
    size_t most = (also ? 2 : 1) * (size_t)graph->tensor_count;
    *names = (struct tensor_names){.env = env};
    TRY(mem_alloc_array(env, MEM_OTHER, "tensor names", most, sizeof *names->list, &names->list));
    for (int t = 0; t < graph->tensor_count; t++) {
        add(names, graph->tensors[t].name, t);
        if (also && strcmp(also(graph->tensors[t].name), graph->tensors[t].name) != 0)
            add(names, also(graph->tensors[t].name), t);
    }
    qsort(names->list, (size_t)names->count, sizeof *names->list, compare);
    return STATUS_OK;
}

int tensor_names_find(const struct tensor_names *names, const char *name)
{
    struct tensor_name wanted = {.name = name};
    const struct tensor_name *found =
        bsearch(&wanted, names->list, (size_t)names->count, sizeof wanted, compare);
    return found ? found->tensor : -1;
}

void tensor_names_free(struct tensor_names *names)
{
    mem_free(names->env, names->list);
}
