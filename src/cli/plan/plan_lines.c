#include "cli/plan/plan_view.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(void *user, const struct mem_line *found)
{
    struct plan_line line = {
        .location = found->location, .category = found->category, .bytes = found->bytes};
    snprintf(line.name, sizeof line.name, "%s", found->name);
    text_add_bytes(user, &line, sizeof line);
}

static int compare(const void *left, const void *right)
{
    const struct plan_line *a = left, *b = right;
    if (a->location != b->location)
        return a->location > b->location ? -1 : 1;
    if (a->category != b->category)
        return a->category < b->category ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

enum status plan_lines_collect(struct env *env, const struct plan_request *request,
                               struct plan_lines *lines)
{
    struct plan_rank rank;
    *lines = (struct plan_lines){0};
    text_init(&lines->room, env);
    TRY(plan_rank_memory(env, request, 0, add, &lines->room, &rank));
    TRY(lines->room.status);
    lines->count = (int)(lines->room.bytes / sizeof *lines->line);
    lines->line = (const struct plan_line *)lines->room.data;
    qsort(lines->room.data, (size_t)lines->count, sizeof *lines->line, compare);
    return STATUS_OK;
}

void plan_lines_free(struct plan_lines *lines)
{
    text_free(&lines->room);
}
