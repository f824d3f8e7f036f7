/* page -- a web page of runs: the server, the files that it serves, and the report, which is the
 * same page as one file.
 *
 * The server is a process of its own that reads run folders (run_watch.h). It runs in one thread.
 */
#ifndef CLI_PAGE_H
#define CLI_PAGE_H
#include "cli/command.h"
#include "cli/page/page_request.h"
#include "cli/page/run_watch.h"

enum { PAGE_MOST_RUNS = 16, PAGE_WORDS = 128 };

/* --- files, embedded at build time (cmake/embed.cmake) ---------------------------------------- */
struct page_file {
    const char *data;
    size_t bytes;
};
extern const struct page_file page_html, page_css, page_js;

/* --- runs ----------------------------------------------------------------------------------- */
struct page_runs {
    struct env env; /* as the caller's, but silent: files may be incomplete at any time */
    struct run_watch watches[PAGE_MOST_RUNS];
    int count;
    int left_out; /* older runs of a folder with more than a page shows */
};
/* Each path is a run folder, or a folder of run folders: of these, the newest that there is room
 * for, by the last record. `waits`: a folder may be missing. */
enum status page_runs_open(struct env *env, const char *const *paths, int count, bool waits,
                           struct page_runs *runs);
void page_runs_close(struct page_runs *runs);
/* "the 16 newest runs are shown, 3 are not; to choose, name runs"; "" if all are shown */
const char *page_runs_left_out(const struct page_runs *runs, char words[PAGE_WORDS]);

/* --- the server: page_server.c, or page_server_none.c without libmicrohttpd ------------------- */
struct page_order {
    const char *const *folders;
    int folder_count;
    struct page_address address;
    bool child; /* of a run: it ends when its parent does, and its folder may be missing */
};
/* Returns when a signal asks to stop, or when the parent has ended. */
enum status page_serve(struct cli *cli, const struct page_order *order);
const char *page_library(void); /* "libmicrohttpd 0.9.75"; "none" */
/* STATUS_USAGE, and how to get one, if this sifr has no server. */
enum status page_check(struct env *env);

/* For `train --page=ADDRESS`: start the server as a child process. It prints the URL. */
enum status page_start(struct cli *cli, const char *folder, const char *address);

#endif
