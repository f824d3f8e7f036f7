/* command_compare -- several runs against each other: curves, settings, losses, times, memory. */
#include "base/file.h"
#include "base/named.h"
#include "cli/inspect/compare.h"

struct compare_settings {
    bool json;
};

static enum status run_compare(struct cli *cli, struct options *options, void *user_settings,
                               const char *const *words, int word_count)
{
    const struct compare_settings *settings = user_settings;
    struct compare_run runs[COMPARE_RUNS] = {0};
    enum status st = STATUS_OK;
    (void)options;
    for (int i = 0; i < word_count; i++) {
        TRY(path_exists(cli->env, "", words[i]));
        if (!dir_exists(words[i]))
            return FAIL(cli->env, CONFIG, "'%s' is a file; name the folder of a run", words[i]);
    }
    for (int i = 0; i < word_count && st == STATUS_OK; i++)
        st = compare_open(cli->env, words[i], &runs[i]);
    if (st == STATUS_OK)
        st = settings->json ? compare_view_json(cli, runs, word_count)
                            : compare_view_text(cli, runs, word_count);
    for (int i = 0; i < word_count; i++)
        compare_close(&runs[i]);
    return st;
}

static const struct option compare_list[] = {
    {COMMAND_FLAG("json", compare_settings, json, BOOL), .help = "print one JSON object"},
};

const struct command command_compare = {
    .name = "compare",
    .usage = "RUN RUN ... [--json]",
    .summary = "compare runs: loss curves, settings, the first step that differs, time, memory",
    .description =
        "RUN is a run folder; there may be up to 8, running, finished or dead. The command draws "
        "the loss curves over each other and lists the settings that differ, with whether they may "
        "change losses. It then says from which step the losses of the first run and each other "
        "differ, and by how much: losses are compared bit by bit, and an ulp is the distance "
        "between a number and the next one that can be stored. Steps are matched by their "
        "number.\n\n"
        "Times are medians of the steps that all runs have: `waited` is the time that compute "
        "waited for communication, `hidden` the share of communication that overlapped with "
        "compute, `rest` everything but waiting. Memory is that of the rank that holds the most. "
        "To compare weights, use `sifr inspect --diff`.\n",
    .examples = "  sifr compare runs/tiny runs/four\n"
                "  sifr compare runs/lr-* --json\n",
    .settings_bytes = sizeof(struct compare_settings),
    .least_words = 2,
    .most_words = COMPARE_RUNS,
    .flags = COMMAND_FLAGS("compare", compare_list),
    .run = run_compare,
};
