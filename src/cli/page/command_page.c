/* command_page -- `sifr page`: serves a web page of runs until Ctrl-C. */
#include <stdlib.h>
#include "cli/page/page.h"

struct page_settings {
    const char *listen;
    bool child;
};

static enum status run_page(struct cli *cli, struct options *options, void *user_settings,
                            const char *const *words, int word_count)
{
    const struct page_settings *settings = user_settings;
    struct page_order order = {
        .folders = words, .folder_count = word_count, .child = settings->child};
    TRY(page_check(cli->env));
    if ((options_is_set(options, "listen") && !*settings->listen) ||
        !page_address_parse(settings->listen, &order.address))
        return FAIL(cli->env, USAGE,
                    "--listen=%s is not an address; write --listen=8080 or --listen=HOST:8080, "
                    "where HOST is an IP address of this machine",
                    settings->listen);
    /* The layout is planned as on the machine of the run; a GPU of this one must not be touched. */
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    return page_serve(cli, &order);
}

static const char *const stop_words[CLI_STEPPINGS] = {
    [CLI_NOT_STEPPING] = "the page ends; no run is affected",
    [CLI_STEPPING] = "",
    [CLI_STEPPING_UNSAVED] = "",
};

static const struct option page_list[] = {
    {COMMAND_FLAG("listen", page_settings, listen, STRING), .value_name = "[HOST:]PORT",
     .help = "where to listen (default: 127.0.0.1, and the first free port from 8017 on); with the "
             "address of another interface, or 0.0.0.0, other machines can connect"},
    {COMMAND_FLAG("child", page_settings, child, BOOL), .hidden = true,
     .help = "end with the parent process; RUN may not exist yet"},
};

const struct command command_page = {
    .name = "page",
    .usage = "RUN... [--listen=[HOST:]PORT]",
    .summary = "show runs in a browser, live: curves, memory, layout, samples",
    .description =
        "RUN is the folder of a run, or a folder of such folders: then the newest are shown, up to "
        "16 runs in all. A run may be running, finished or killed. Several runs are drawn into one "
        "picture, with the differences of their "
        "configurations. The command prints the address to open, and serves the page until "
        "Ctrl-C.\n\n"
        "The address contains a random token: without it nothing is shown. The page is served to "
        "this machine only, unless --listen says otherwise. On a remote machine, the command also "
        "prints the `ssh -L` line that makes the page reachable from yours. Nothing is written to "
        "the run folder, and nothing is loaded from the network.\n\n"
        "`sifr train --page` starts the same server together with a run. `sifr report` writes the "
        "page to a file.\n",
    .examples = "  sifr page runs/tiny\n"
                "  sifr page runs/tiny runs/four        # compare two runs\n"
                "  sifr page runs                       # the newest runs in the folder\n"
                "  sifr train configs/tiny.yaml --data.path=notes.txt --page\n",
    .settings_bytes = sizeof(struct page_settings),
    .least_words = 1,
    .most_words = PAGE_MOST_RUNS,
    .stop_words = stop_words,
    .flags = COMMAND_FLAGS("page", page_list),
    .run = run_page,
};
