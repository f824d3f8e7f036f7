/* plan_html -- a plan as one page of HTML that needs no network and runs no script: the memory of
 * each ZeRO stage, the timetable of a pipeline, and the layouts that a search has simulated. */
#ifndef CLI_PLAN_HTML_H
#define CLI_PLAN_HTML_H
#include "cli/plan/plan_view.h"

enum status plan_html_layout(struct cli *cli, const struct plan_view *view, const char *path);

/* The layouts that a search simulates: `visit` is a search_visit_fn, `user` is this. */
struct plan_html_point {
    double seconds;
    size_t bytes;
    bool exact;
    char words[160]; /* of the layout */
};
struct plan_html_points { /* starts with plan_html_points_init */
    struct env *env;      /* borrowed */
    struct text room;     /* memory of the array of struct plan_html_point */
};
void plan_html_points_init(struct plan_html_points *points, struct env *env);
void plan_html_points_free(struct plan_html_points *points);
void plan_html_visit(void *user, const struct search_layout *layout, bool exact);

enum status plan_html_search(struct cli *cli, const struct plan_search_view *view,
                             const struct plan_html_points *points, const char *path);

#endif
