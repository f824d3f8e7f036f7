/* plan_lines -- every buffer of a planned rank, sorted for reading. */
#ifndef CLI_PLAN_LINES_H
#define CLI_PLAN_LINES_H
#include "plan/plan.h"
#include "base/text.h"

struct plan_line {
    enum mem_location location;
    enum mem_category category;
    size_t bytes;
    char name[112];
};

struct plan_lines {
    struct text room; /* memory of the array */
    const struct plan_line *line;
    int count;
};

/* The buffers of rank 0: GPU before host, by category, largest first. Free them also after a
 * failure. */
enum status plan_lines_collect(struct env *env, const struct plan_request *request,
                               struct plan_lines *lines);
void plan_lines_free(struct plan_lines *lines);

#endif
