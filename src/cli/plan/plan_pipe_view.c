/* plan_pipe_view -- prints a pipeline: a line for each PP stage, the idle time, the map of ranks
 * and a picture of a step. */
#include <stdio.h>
#include "cli/plan/plan_view.h"

enum { MOST_LINES = 16 }; /* with more PP stages, the middle ones are left out */

/* "0-3", or with several chunks "0-1, 4-5". */
static void describe_units(const struct plan_pipe *pipe, int p, char *out, size_t bytes)
{
    size_t used = 0;
    for (int c = 0; c < pipe->chunks && used < bytes; c++) {
        int s = c * pipe->pp + p, first = pipe->first[s], last = pipe->first[s + 1] - 1;
        used += (size_t)snprintf(out + used, bytes - used, "%s%d", c > 0 ? ", " : "", first);
        if (last > first && used < bytes)
            used += (size_t)snprintf(out + used, bytes - used, "-%d", last);
    }
}

static void stage_line(const struct plan_pipe *pipe, int p, struct text *text)
{
    const struct plan_rank *worker = &pipe->workers[p];
    char units[64], a[32], b[32], c[32];
    describe_units(pipe, p, units, sizeof units);
    text_printf(text, "  %-6d %-14s %12s %12s %12s %12d\n", p, units,
                text_human_count(a, (double)worker->part.parameters),
                text_human_bytes(b, (double)worker->total_bytes),
                text_human_bytes(c, (double)worker->sent[TRAFFIC_PIPE]), pipe->in_flight[p]);
}

static void describe_bubble(const struct plan_view *view, struct text *text)
{
    const struct plan_pipe *pipe = &view->plan->pipe;
    text_printf(
        text,
        "schedule %s: ranks are idle %.1f %% of the time of the passes, estimated from their "
        "floating-point operations; (p-1)/m is %.1f %%\n",
        timetable_words[view->request->parallel.schedule], 100 * pipe->bubble,
        100.0 * (pipe->pp - 1) / (double)view->plan->rounds);
}

enum status plan_view_pipe(struct cli *cli, const struct plan_view *view, struct text *text)
{
    const struct plan_pipe *pipe = &view->plan->pipe;
    text_printf(text, "\n%s%-8s %-14s %12s %12s %12s %12s%s\n",
                console_style(cli->console, STYLE_BOLD), "stage", "units", "parameters", "memory",
                "pipe sends", "in flight", console_style(cli->console, STYLE_PLAIN));
    for (int p = 0; p < pipe->pp; p++) {
        if (pipe->pp <= MOST_LINES || p < MOST_LINES - 2 || p == pipe->pp - 1)
            stage_line(pipe, p, text);
        else if (p == MOST_LINES - 2)
            text_add(text, "  ...\n");
    }
    describe_bubble(view, text);
    text_add(text, "\n");
    return plan_pipe_draw(cli->env, view->request, view->plan->rounds, text);
}
