/* command_report -- `sifr report`: the page as one file. The style, the script and the data take the
 * places that page.html marks, so the file needs nothing else. */
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "cli/html_file.h"
#include "cli/page/page.h"

enum { SERIES_VALUES = SERIES_ROWS, SERIES_VALUES_MANY = 4096, TRACE_SPANS = 4000 };

struct report_settings {
    const char *out;
};

/* --- data ----------------------------------------------------------------------------------- */

static void add_or_null(struct text *text, const char *key, const struct text *json)
{
    text_printf(text, ",\"%s\":", key);
    text_add(text, json->bytes ? text_string(json) : "null");
}

static void print_run(const struct run_watch *watch, int runs, struct text *text)
{
    text_add(text, "{\"about\":");
    run_watch_about(watch, text);
    text_add(text, ",\"series\":");
    run_watch_series(watch, runs == 1 ? SERIES_VALUES : SERIES_VALUES_MANY, text);
    add_or_null(text, "layout", &watch->layout);
    text_add(text, ",\"trace\":");
    run_trace_print(watch->env, watch->folder, watch->ranks, TRACE_SPANS, text);
    text_add(text, "}");
}

/* In a script element, "<" could end it. In JSON it occurs only in strings. */
static void add_script_json(struct text *html, const struct text *json)
{
    const char *from = text_string(json), *less;
    for (; (less = strchr(from, '<')) != NULL; from = less + 1) {
        text_add_bytes(html, from, (size_t)(less - from));
        text_add(html, "\\u003c");
    }
    text_add(html, from);
}

static enum status print_data(struct page_runs *runs, struct text *html)
{
    struct text json;
    text_init(&json, html->env);
    text_printf(&json, "{\"sifr\":\"%s\",\"runs\":[", SIFR_VERSION);
    for (int i = 0; i < runs->count; i++) {
        text_add(&json, i ? "," : "");
        run_watch_look(&runs->watches[i]);
        print_run(&runs->watches[i], runs->count, &json);
    }
    text_printf(&json, "],\"left_out\":%d}", runs->left_out);
    enum status st = json.status;
    if (st == STATUS_OK) {
        text_add(html, "<script type=\"application/json\" id=\"data\">");
        add_script_json(html, &json);
        text_add(html, "</script>\n");
        st = html->status;
    }
    text_free(&json);
    return st;
}

/* --- the file ------------------------------------------------------------------------------- */

/* Copy the page up to the end of the mark "<!--NAME-->", and skip to the end of "<!--/NAME-->". */
static const char *copy_to(struct text *html, const char *from, const char *name)
{
    char begin[32], end[32];
    snprintf(begin, sizeof begin, "<!--%s-->", name);
    snprintf(end, sizeof end, "<!--/%s-->", name);
    const char *mark = strstr(from, begin), *after = strstr(from, end);
    CHECK(mark != NULL && after != NULL);
    text_add_bytes(html, from, (size_t)(mark - from));
    return after + strlen(end);
}

static enum status print_report(struct page_runs *runs, struct text *html)
{
    const char *rest = copy_to(html, page_html.data, "policy");
    text_add(html, "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                   "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\">\n");
    rest = copy_to(html, rest, "style");
    text_add(html, "<style>\n");
    text_add_bytes(html, page_css.data, page_css.bytes);
    text_add(html, "</style>\n");
    rest = copy_to(html, rest, "script");
    TRY(print_data(runs, html));
    text_add(html, "<script>\n");
    text_add_bytes(html, page_js.data, page_js.bytes);
    text_add(html, "</script>\n");
    text_add(html, rest);
    return html->status;
}

static enum status run_report(struct cli *cli, struct options *options, void *user_settings,
                              const char *const *words, int word_count)
{
    const struct report_settings *settings = user_settings;
    struct page_runs *runs;
    struct text html;
    enum status st;
    char human[32], left_out[PAGE_WORDS];
    (void)options;
    bool to_stdout = strcmp(settings->out, "-") == 0;
    if (!to_stdout)
        TRY(html_file_check(cli->env, "out", settings->out, "report"));
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* as in command_page.c */
    TRY(mem_alloc(cli->env, MEM_OTHER, "runs", sizeof *runs, &runs));
    text_init(&html, cli->env);
    TRY_OR(done, page_runs_open(cli->env, words, word_count, false, runs));
    TRY_OR(done, print_report(runs, &html));
    if (*page_runs_left_out(runs, left_out))
        log_warn(cli->env, "%s", left_out);
    if (to_stdout) {
        console_pass(cli->console, text_string(&html), html.bytes);
        goto done;
    }
    TRY_OR(done, file_write_text(cli->env, settings->out, &html));
    console_line(cli->console, "wrote %s: %s, %d run%s", settings->out,
                 text_human_bytes(human, (double)html.bytes), runs->count,
                 runs->count == 1 ? "" : "s");
done:
    text_free(&html);
    page_runs_close(runs);
    mem_free(cli->env, runs);
    return st;
}

static const struct option report_list[] = {
    {COMMAND_FLAG("out", report_settings, out, STRING), .letter = 'o', .value_name = "FILE",
     .fallback = "report.html",
     .help = "file to write, - for standard output; an earlier report is replaced, any other file "
             "is not"},
};

const struct command command_report = {
    .name = "report",
    .usage = "RUN... [-o FILE]",
    .summary = "write the page of runs to one HTML file",
    .description =
        "The same page as `sifr page`, with its data: curves, memory, layout, trace, samples, "
        "configuration. The file opens from disk, without a network or a server. A column of more "
        "than 12,288 steps is merged: means, with the least and largest values.\n",
    .examples = "  sifr report runs/tiny -o tiny.html\n"
                "  sifr report runs/tiny runs/four -o both.html\n",
    .settings_bytes = sizeof(struct report_settings),
    .least_words = 1,
    .most_words = PAGE_MOST_RUNS,
    .flags = COMMAND_FLAGS("report", report_list),
    .run = run_report,
};
