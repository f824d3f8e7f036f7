/* plan_html -- the page is text and SVG. Bars are SVG that stretches to the width of the window,
 * with words outside of it, so that a phone shows them in a readable size. A tooltip is a <title>;
 * every figure is in a table, too. The policy of the page allows its own style and nothing else. */
#include "cli/plan/plan_html.h"
#include <math.h>
#include <string.h>
#include <sys/random.h>
#include "base/file.h"
#include "base/named.h"
#include "cli/html_file.h"
#include "engine/timetable.h"

enum { MOST_DOTS = 4000, MOST_PASSES = 20000 };

/* --- text ----------------------------------------------------------------------------------- */

static void add_escaped(struct text *page, const char *s)
{
    for (; *s; s++) {
        if (*s == '<')
            text_add(page, "&lt;");
        else if (*s == '>')
            text_add(page, "&gt;");
        else if (*s == '&')
            text_add(page, "&amp;");
        else if (*s == '"')
            text_add(page, "&quot;");
        else if ((unsigned char)*s >= ' ' || *s == '\n')
            text_add_bytes(page, s, 1);
    }
}

/* Colours of the categories in both themes; all text is that of the theme. */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfaf8;--fg:#1d1f23;--dim:#666b74;--line:#dedbd4;"
    "--card:#fff;--hot:#c2410c;--c0:#3b6fb6;--c1:#c98a1b;--c2:#4d9a6a;--c3:#8b6bb8;--c4:#c2554d;"
    "--c5:#2f9aa0;--c6:#7a8794;--c7:#a5793f;--c8:#b5608f;--c9:#8d8f45;--c10:#555b66}"
    "@media(prefers-color-scheme:dark){:root{--bg:#15171a;--fg:#e7e6e3;--dim:#9aa0a9;"
    "--line:#2e3238;--card:#1c1f23;--hot:#fb923c;--c0:#6f9fe0;--c1:#e0ad4f;--c2:#79c297;"
    "--c3:#b397dc;--c4:#e5857d;--c5:#62c5ca;--c6:#a3afbb;--c7:#cda671;--c8:#dc90b9;--c9:#bcbe74;"
    "--c10:#7f8794}}"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 4rem;"
    "background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif}"
    "h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2.5rem 0 .5rem}"
    "p{margin:.25rem 0;color:var(--dim)}p.big{color:var(--fg)}"
    "pre{background:var(--card);border:1px solid var(--line);border-radius:6px;padding:.75rem;"
    "white-space:pre-wrap;overflow-wrap:anywhere;font:.85rem/1.45 ui-monospace,monospace;"
    "margin:.5rem 0}"
    ".row{margin:.9rem 0}.row .name{display:flex;justify-content:space-between;gap:1rem;"
    "flex-wrap:wrap;font-variant-numeric:tabular-nums}.chosen .name{font-weight:600}"
    ".bar{display:block;width:100%;height:1.6rem;background:var(--card);"
    "border:1px solid var(--line);border-radius:4px}.lane .bar{height:1.3rem}"
    ".lane{margin:.25rem 0}.lane .name{font-size:.8rem;color:var(--dim)}"
    ".limit{fill:var(--hot)}.over{color:var(--hot)}"
    ".key{display:flex;flex-wrap:wrap;gap:.25rem 1rem;padding:0;margin:.5rem 0;list-style:none;"
    "font-size:.9rem}.key svg{width:.8rem;height:.8rem;margin-right:.35rem}"
    ".c0{fill:var(--c0)}.c1{fill:var(--c1)}.c2{fill:var(--c2)}.c3{fill:var(--c3)}"
    ".c4{fill:var(--c4)}.c5{fill:var(--c5)}.c6{fill:var(--c6)}.c7{fill:var(--c7)}"
    ".c8{fill:var(--c8)}.c9{fill:var(--c9)}.c10{fill:var(--c10)}"
    ".odd{opacity:.72}rect:hover,circle:hover{opacity:.55}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;"
    "font-size:.9rem;white-space:nowrap}td,th{padding:.25rem .6rem;text-align:right;"
    "border-bottom:1px solid var(--line);font-weight:400}th:first-child,td:first-child"
    "{text-align:left;white-space:normal;min-width:9rem}thead th{color:var(--dim)}tr.chosen "
    "td{font-weight:600}td.why,th.why{text-align:left;white-space:normal;min-width:14rem}"
    ".plot{display:block;width:100%;max-width:44rem;height:auto}"
    ".plot text{fill:var(--dim);font-size:11px}.plot .axis{stroke:var(--line);stroke-width:1}"
    ".plot .edge{stroke:var(--hot);stroke-dasharray:4 3}.dot{fill:var(--c6);fill-opacity:.45}"
    ".listed{fill:var(--c0)}.best{fill:var(--hot)}";

static void begin_page(struct text *page, const char *title)
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number)
        number = (uint64_t)(uintptr_t)&number;
    text_printf(page,
                "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n%s\n"
                "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                "style-src 'nonce-%016llx'; base-uri 'none'; form-action 'none'\">\n"
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                "<meta name=\"referrer\" content=\"no-referrer\">\n<title>",
                HTML_MADE_BY("plan"), (unsigned long long)number);
    add_escaped(page, title);
    text_printf(page, "</title>\n<style nonce=\"%016llx\">%s</style>\n</head>\n<body>\n<h1>",
                (unsigned long long)number, style);
    add_escaped(page, title);
    text_add(page, "</h1>\n");
}

static void add_command(struct cli *cli, struct text *page)
{
    struct text line;
    text_init(&line, cli->env);
    text_add(&line, "sifr");
    for (int i = 0; i < cli->argc; i++)
        command_line_add_word(&line, cli->argv[i]);
    text_add(page, "<pre>");
    add_escaped(page, text_string(&line));
    text_add(page, "</pre>\n");
    text_free(&line);
}

static enum status end_page(struct cli *cli, struct text *page, enum status st, const char *path)
{
    text_add(page, "</body>\n</html>\n");
    if (st == STATUS_OK)
        st = file_write_text(cli->env, path, page);
    text_free(page);
    if (st == STATUS_OK)
        log_info(cli->env, "the page is in '%s': open it in a browser", path);
    return st;
}

/* --- memory --------------------------------------------------------------------------------- */

enum { BAR = 10000, RUNTIME = MEM_CATEGORY_COUNT, SEGMENTS }; /* a bar is BAR units wide */

static const char *segment_word(int segment)
{
    return segment == RUNTIME ? "runtime" : mem_category_word((enum mem_category)segment);
}

static size_t segment_bytes(const struct plan_rank *rank, int segment)
{
    return segment == RUNTIME ? rank->runtime_bytes : rank->bytes[segment];
}

/* A bar of `scale` bytes with the memory of a rank, and a mark where its limit is. */
static void add_bar(struct text *page, const struct plan_rank *rank, double scale, size_t limit)
{
    char bytes[32];
    double at = 0;
    text_printf(page,
                "<svg class=\"bar\" viewBox=\"0 0 %d 10\" preserveAspectRatio=\"none\" "
                "role=\"img\">",
                BAR);
    for (int i = 0; i < SEGMENTS; i++) {
        double width = (double)segment_bytes(rank, i) / scale * BAR;
        if (width <= 0)
            continue;
        text_printf(page,
                    "<rect class=\"c%d\" x=\"%.1f\" y=\"0\" width=\"%.1f\" height=\"10\">"
                    "<title>%s: %s</title></rect>",
                    i % 11, at, width, segment_word(i),
                    text_human_bytes(bytes, (double)segment_bytes(rank, i)));
        at += width;
    }
    if (limit > 0 && (double)limit <= scale)
        text_printf(page,
                    "<rect class=\"limit\" x=\"%.1f\" y=\"0\" width=\"30\" height=\"10\">"
                    "<title>limit: %s</title></rect>",
                    (double)limit / scale * BAR - 15, text_human_bytes(bytes, (double)limit));
    text_add(page, "</svg>");
}

static void add_bar_row(struct text *page, const char *name, const struct plan_rank *rank,
                        bool chosen, double scale, size_t limit)
{
    char bytes[32];
    size_t needed = plan_needed_bytes(rank);
    bool over = limit > 0 && needed > limit;
    text_printf(page, "<div class=\"row%s\"><div class=\"name\"><span>%s%s</span><span%s>%s%s",
                chosen ? " chosen" : "", name, chosen ? " (chosen)" : "",
                over ? " class=\"over\"" : "", text_human_bytes(bytes, (double)needed),
                over ? ": does not fit" : "");
    if (rank->host_bytes > 0)
        text_printf(page, "; on the host %s", text_human_bytes(bytes, (double)rank->host_bytes));
    if (rank->disk_bytes > 0)
        text_printf(page, "; on disk %s", text_human_bytes(bytes, (double)rank->disk_bytes));
    text_add(page, "</span></div>");
    add_bar(page, rank, scale, limit);
    text_add(page, "</div>\n");
}

/* Of any ZeRO stage. */
static size_t most_of_segment(const struct plan *plan, int segment)
{
    size_t most = 0;
    for (int s = 0; s < PLAN_ZERO_STAGES; s++) {
        size_t worker = segment_bytes(&plan->stages[s].worker, segment);
        size_t server = segment_bytes(&plan->stages[s].server, segment);
        most = worker > most ? worker : most;
        most = server > most ? server : most;
    }
    return most;
}

static void add_key(struct text *page, const struct plan *plan)
{
    text_add(page, "<ul class=\"key\">");
    for (int i = 0; i < SEGMENTS; i++) {
        if (most_of_segment(plan, i) > 0)
            text_printf(page,
                        "<li><svg viewBox=\"0 0 1 1\"><rect class=\"c%d\" width=\"1\" "
                        "height=\"1\"/></svg>%s</li>",
                        i % 11, segment_word(i));
    }
    text_add(page, "</ul>\n");
}

static void add_memory_table(struct text *page, const struct plan *plan, int chosen)
{
    char bytes[32];
    text_add(page, "<div class=\"wide\"><table><thead><tr><th>worker</th>");
    for (int s = 0; s < PLAN_ZERO_STAGES; s++)
        if (plan->stages[s].possible)
            text_printf(page, s == chosen ? "<th>stage %d (chosen)</th>" : "<th>stage %d</th>", s);
    text_add(page, "</tr></thead><tbody>");
    for (int i = 0; i <= SEGMENTS; i++) {
        if (i < SEGMENTS && most_of_segment(plan, i) == 0)
            continue;
        text_printf(page, "<tr%s><td>%s</td>", i == SEGMENTS ? " class=\"chosen\"" : "",
                    i == SEGMENTS ? "together" : segment_word(i));
        for (int s = 0; s < PLAN_ZERO_STAGES; s++) {
            const struct plan_rank *rank = &plan->stages[s].worker;
            if (plan->stages[s].possible)
                text_printf(
                    page, "<td>%s</td>",
                    text_human_bytes(bytes, (double)(i == SEGMENTS ? plan_needed_bytes(rank)
                                                                   : segment_bytes(rank, i))));
        }
        text_add(page, "</tr>");
    }
    text_add(page, "</tbody></table></div>\n");
}

static double most_needed(const struct plan *plan)
{
    double most = 1;
    for (int s = 0; s < PLAN_ZERO_STAGES; s++) {
        if (!plan->stages[s].possible)
            continue;
        most = fmax(most, (double)plan_needed_bytes(&plan->stages[s].worker));
        most = fmax(most, (double)plan_needed_bytes(&plan->stages[s].server));
    }
    return most;
}

static void add_memory(struct text *page, const struct plan_request *request,
                       const struct plan *plan, size_t limit)
{
    double scale = most_needed(plan);
    char name[48], bytes[32];
    if (limit > 0 && (double)limit < 3 * scale) /* else its mark would leave no room for bars */
        scale = fmax(scale, (double)limit) * 1.01;
    text_add(page, "<h2>Memory of a rank in each ZeRO stage</h2>\n");
    if (limit > 0)
        text_printf(page, "<p>Of %s per rank.</p>\n", text_human_bytes(bytes, (double)limit));
    add_key(page, plan);
    for (int s = 0; s < PLAN_ZERO_STAGES; s++) {
        const struct plan_zero_stage *stage = &plan->stages[s];
        if (!stage->possible)
            continue;
        snprintf(name, sizeof name, "stage %d%s", s, request->zero.servers > 0 ? ", worker" : "");
        add_bar_row(page, name, &stage->worker, s == request->zero.stage, scale, limit);
        snprintf(name, sizeof name, "stage %d, server", s);
        if (request->zero.servers > 0)
            add_bar_row(page, name, &stage->server, s == request->zero.stage, scale, limit);
    }
    add_memory_table(page, plan, request->zero.stage);
    if (plan->pipe.pp < 2)
        return;
    text_printf(page, "<h2>Memory of the PP stages in ZeRO stage %d</h2>\n", request->zero.stage);
    for (int p = 0; p < plan->pipe.pp; p++) {
        snprintf(name, sizeof name, "PP stage %d, %d in flight", p, plan->pipe.in_flight[p]);
        add_bar_row(page, name, &plan->pipe.workers[p], false, scale, limit);
    }
}

/* --- the timetable -------------------------------------------------------------------------- */

struct lanes {
    struct text *page;
    int p;      /* the open lane; -1 = none */
    int64_t at; /* passes so far */
};

static void close_lane(struct lanes *lanes)
{
    if (lanes->p >= 0)
        text_add(lanes->page, "</svg></div>\n");
}

static void add_pass(void *user, int p, const struct timetable_action *action, double begin,
                     double end)
{
    static const struct {
        const char *word;
        int colour;
    } passes[] = {[TIMETABLE_FORWARD] = {"forward", 0},
                  [TIMETABLE_BACKWARD] = {"backward", 1},
                  [TIMETABLE_INPUT] = {"backward, input", 1},
                  [TIMETABLE_WEIGHT] = {"backward, weights", 2}};
    struct lanes *lanes = user;
    if (lanes->p != p) {
        close_lane(lanes);
        lanes->p = p;
        text_printf(lanes->page,
                    "<div class=\"lane\"><div class=\"name\">PP stage %d</div><svg class=\"bar\" "
                    "viewBox=\"0 0 %d 10\" preserveAspectRatio=\"none\" role=\"img\">",
                    p, BAR);
    }
    if (timetable_is_message(action->verb) || lanes->at++ >= MOST_PASSES)
        return;
    text_printf(
        lanes->page,
        "<rect class=\"c%d%s\" x=\"%.1f\" y=\"0\" width=\"%.1f\" height=\"10\"><title>%s of "
        "micro-batch %d",
        passes[action->verb].colour, action->round % 2 ? " odd" : "", begin * BAR,
        (end - begin) * BAR, passes[action->verb].word, action->round);
    if (action->chunk > 0)
        text_printf(lanes->page, ", chunk %d", action->chunk);
    text_printf(lanes->page, ": %.1f%% to %.1f%% of the passes</title></rect>", 100 * begin,
                100 * end);
}

static enum status add_timetable(struct cli *cli, struct text *page,
                                 const struct plan_request *request, const struct plan *plan)
{
    static const char *const words[] = {"forward", "backward", "backward, weights"};
    struct lanes lanes = {.page = page, .p = -1};
    if (plan->pipe.pp < 2)
        return STATUS_OK;
    text_printf(page,
                "<h2>What each PP stage does</h2>\n<p>Schedule %s, %lld micro-batches. Ranks are "
                "idle %.1f%% of the time of the passes: passes take as long as their arithmetic, "
                "messages no time.</p>\n<ul class=\"key\">",
                timetable_words[request->parallel.schedule], (long long)plan->rounds,
                100 * plan->pipe.bubble);
    for (int i = 0; i < 3; i++)
        if (i < 2 || request->parallel.schedule == TIMETABLE_ZERO_BUBBLE)
            text_printf(page,
                        "<li><svg viewBox=\"0 0 1 1\"><rect class=\"c%d\" width=\"1\" "
                        "height=\"1\"/></svg>%s</li>",
                        i, words[i]);
    text_add(page, "</ul>\n");
    TRY(plan_pipe_visit(cli->env, request, plan->rounds, add_pass, &lanes));
    close_lane(&lanes);
    if (lanes.at > MOST_PASSES)
        text_printf(page, "<p>The first %d of %lld passes.</p>\n", MOST_PASSES,
                    (long long)lanes.at);
    return STATUS_OK;
}

enum status plan_html_layout(struct cli *cli, const struct plan_view *view, const char *path)
{
    struct text page, facts;
    text_init(&page, cli->env);
    text_init(&facts, cli->env);
    begin_page(&page, "sifr plan");
    add_command(cli, &page);
    run_config_describe(view->config, &facts);
    plan_view_prices(view->config, view->request, "scratch memory is", &facts);
    text_add(&page, "<pre>");
    add_escaped(&page, text_string(&facts));
    text_printf(&page, "ranks    %d</pre>\n", view->request->ranks);
    text_free(&facts);
    add_memory(&page, view->request, view->plan, view->room.memory);
    return end_page(cli, &page, add_timetable(cli, &page, view->request, view->plan), path);
}

/* --- the search ----------------------------------------------------------------------------- */

void plan_html_points_init(struct plan_html_points *points, struct env *env)
{
    points->env = env;
    text_init(&points->room, env);
}

void plan_html_points_free(struct plan_html_points *points)
{
    text_free(&points->room);
}

static int point_count(const struct plan_html_points *points)
{
    return (int)(points->room.bytes / sizeof(struct plan_html_point));
}

void plan_html_visit(void *user, const struct search_layout *layout, bool exact)
{
    struct plan_html_points *points = user;
    struct plan_html_point point = {
        .seconds = layout->time.step, .bytes = layout->needed_bytes, .exact = exact};
    struct text words;
    if (point_count(points) >= MOST_DOTS)
        return;
    text_init(&words, points->env);
    plan_search_say(layout, &words);
    snprintf(point.words, sizeof point.words, "%s", text_string(&words));
    text_free(&words);
    text_add_bytes(&points->room, &point, sizeof point);
}

/* The drawing area of the scatter, in its own units, and its axes. */
enum { LEFT = 58, RIGHT = 470, TOP = 12, BOTTOM = 250, TICKS = 4 };
struct axes {
    double x0, x1, y0, y1; /* seconds, on a logarithmic axis; bytes */
};

static double x_of(const struct axes *axes, double seconds)
{
    return LEFT + (log(seconds) - log(axes->x0)) / (log(axes->x1) - log(axes->x0)) * (RIGHT - LEFT);
}

static double y_of(const struct axes *axes, double bytes)
{
    return BOTTOM - (bytes - axes->y0) / (axes->y1 - axes->y0) * (BOTTOM - TOP);
}

static void widen(struct axes *axes, double seconds, double bytes)
{
    axes->x0 = fmin(axes->x0, seconds);
    axes->x1 = fmax(axes->x1, seconds);
    axes->y1 = fmax(axes->y1, bytes);
}

static void add_axes(struct text *page, const struct axes *axes, size_t limit)
{
    char word[32];
    for (int i = 0; i <= TICKS; i++) {
        double share = (double)i / TICKS, bytes = axes->y0 + share * (axes->y1 - axes->y0);
        double seconds = exp(log(axes->x0) + share * (log(axes->x1) - log(axes->x0)));
        text_printf(page,
                    "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                    "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>",
                    LEFT, RIGHT, y_of(axes, bytes), y_of(axes, bytes), LEFT - 5,
                    y_of(axes, bytes) + 4, text_human_bytes(word, bytes));
        text_printf(page, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s</text>",
                    x_of(axes, seconds), BOTTOM + 16, i == TICKS ? "end" : "middle",
                    plan_search_seconds(word, seconds));
    }
    if (limit > 0 && (double)limit <= axes->y1)
        text_printf(
            page,
            "<line class=\"edge\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"><title>memory "
            "of a rank: %s</title></line>",
            LEFT, RIGHT, y_of(axes, (double)limit), y_of(axes, (double)limit),
            text_human_bytes(word, (double)limit));
    text_printf(page,
                "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">time of a step (logarithmic); "
                "memory of a rank upwards</text>",
                (LEFT + RIGHT) / 2, BOTTOM + 34);
}

static void add_dot(struct text *page, const struct axes *axes, double seconds, size_t bytes,
                    bool exact, const char *kind, double radius, const char *words)
{
    char a[32], b[32];
    text_printf(page, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"><title>", kind,
                x_of(axes, seconds), y_of(axes, (double)bytes), radius);
    add_escaped(page, words);
    text_printf(page, ": %s, %s%s</title></circle>", plan_search_seconds(a, seconds),
                exact ? "" : "at least ", text_human_bytes(b, (double)bytes));
}

static void add_scatter(struct cli *cli, struct text *page, const struct plan_search_view *view,
                        const struct plan_html_points *points)
{
    const struct plan_html_point *dots = (const struct plan_html_point *)points->room.data;
    const struct search_result *result = view->result;
    struct axes axes = {.x0 = INFINITY, .x1 = 0};
    int count = point_count(points);
    struct text words;
    for (int i = 0; i < count; i++)
        widen(&axes, dots[i].seconds, (double)dots[i].bytes);
    for (int i = 0; i < result->count; i++)
        widen(&axes, result->layouts[i].time.step, (double)result->layouts[i].needed_bytes);
    if (result->count == 0)
        return;
    if ((double)view->space->memory < 2 * axes.y1)
        axes.y1 = fmax(axes.y1, (double)view->space->memory);
    axes.x0 /= 1.03;
    axes.x1 *= 1.03;
    axes.y1 *= 1.05;
    text_add(page, "<h2>Layouts: time against memory</h2>\n<p>Each dot is a layout that was "
                   "simulated: point at it for its settings. Coloured ones are listed below, with "
                   "the fastest in orange; grey ones are slower, and their memory is a lower "
                   "bound where they are not among the best of their tp and pp.</p>\n"
                   "<svg class=\"plot\" viewBox=\"0 0 480 292\" role=\"img\">");
    add_axes(page, &axes, view->space->memory);
    for (int i = 0; i < count; i++)
        add_dot(page, &axes, dots[i].seconds, dots[i].bytes, dots[i].exact, "dot", 3,
                dots[i].words);
    text_init(&words, cli->env);
    for (int i = result->count - 1; i >= 0; i--) {
        const struct search_layout *layout = &result->layouts[i];
        text_clear(&words);
        plan_search_say(layout, &words);
        add_dot(page, &axes, layout->time.step, layout->needed_bytes, true,
                i == 0 ? "best" : "listed", i == 0 ? 6 : 4.5, text_string(&words));
    }
    text_free(&words);
    text_add(page, "</svg>\n");
}

static void add_layouts(struct cli *cli, struct text *page, const struct plan_search_view *view)
{
    struct text words;
    char a[32], b[32];
    text_init(&words, cli->env);
    text_add(page, "<div class=\"wide\"><table><thead><tr><th>layout</th><th>step</th><th>memory "
                   "of a rank</th><th>hidden</th><th class=\"why\">against the "
                   "others</th></tr></thead><tbody>");
    for (int i = 0; i < view->result->count; i++) {
        const struct search_layout *layout = &view->result->layouts[i];
        text_clear(&words);
        plan_search_say(layout, &words);
        text_printf(page, "<tr%s><td>", i == 0 ? " class=\"chosen\"" : "");
        add_escaped(page, text_string(&words));
        text_printf(page, "</td><td>%s</td><td>%s</td><td>%.0f%%</td><td class=\"why\">",
                    plan_search_seconds(a, layout->time.step),
                    text_human_bytes(b, (double)layout->needed_bytes),
                    100 * plan_time_hidden(&layout->time));
        add_escaped(page, layout->why);
        text_add(page, "</td></tr>");
    }
    text_add(page, "</tbody></table></div>\n");
    text_clear(&words);
    plan_search_command(cli, view, &view->result->layouts[0], &words);
    text_add(page, "<p class=\"big\">The command of the fastest:</p>\n<pre>");
    add_escaped(page, text_string(&words));
    text_add(page, "</pre>\n");
    text_free(&words);
}

/* The memory and the timetable of the fastest layout. */
static enum status add_best(struct cli *cli, struct text *page, const struct plan_search_view *view)
{
    const struct plan_request *request = &view->result->layouts[0].request;
    struct plan plan;
    TRY(plan_make(cli->env, request, &plan));
    add_memory(page, request, &plan, view->space->memory);
    enum status st = add_timetable(cli, page, request, &plan);
    plan_free(cli->env, &plan);
    return st;
}

enum status plan_html_search(struct cli *cli, const struct plan_search_view *view,
                             const struct plan_html_points *points, const char *path)
{
    struct text page, facts;
    enum status st = points->room.status;
    text_init(&page, cli->env);
    text_init(&facts, cli->env);
    begin_page(&page, "sifr plan: search");
    add_command(cli, &page);
    plan_search_describe(view, &facts);
    text_add(&page, "<pre>");
    add_escaped(&page, text_string(&facts));
    text_add(&page, "</pre>\n");
    text_free(&facts);
    if (view->result->count == 0)
        text_add(&page, "<p class=\"over\">No layout fits in memory.</p>\n");
    add_scatter(cli, &page, view, points);
    if (view->result->count > 0)
        add_layouts(cli, &page, view);
    if (st == STATUS_OK && view->result->count > 0)
        st = add_best(cli, &page, view);
    return end_page(cli, &page, st, path);
}
