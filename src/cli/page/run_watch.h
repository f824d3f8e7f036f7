/* run_watch -- what a page shows of one run, read from its folder alone.
 *
 * run_watch_look reads what has changed; everything else only prints. Nothing is written, and no
 * lock is taken: the run cannot notice. Every size is bounded, whatever the files contain. A folder
 * that does not exist yet is a run that has not begun.
 */
#ifndef CLI_RUN_WATCH_H
#define CLI_RUN_WATCH_H
#include "cli/page/line_tail.h"
#include "cli/page/run_series.h"

enum run_state {
    RUN_WAITING, /* no record yet */
    RUN_ACTIVE,  /* its process lives */
    RUN_SILENT,  /* it was started on another machine, and nothing has changed for long */
    RUN_DIED,    /* its process has ended without a summary */
    RUN_ENDED,   /* there is a summary */
};

enum { RUN_SAMPLES = 64 };

struct run_watch {
    struct env *env; /* borrowed */
    char *folder;
    struct line_tail metrics, samples;
    struct series steps, evaluations;
    int64_t generation; /* changes when row numbers no longer hold */
    int64_t sent_rows;  /* rows that were complete at the last run_watch_news */
    int64_t sent_evaluations;
    int64_t version;  /* of what run_watch_about prints */
    int64_t skipped;  /* lines of metrics.jsonl that are no record of a step */
    int ranks;        /* 0 = not known yet */
    struct text last; /* the last record */
    struct text texts[RUN_SAMPLES];
    int64_t text_count;                                      /* all that there were */
    struct text config, summary, checkpoints, layout, trace; /* JSON */
    char state_words[160];
    enum run_state state;
    int64_t stamps[5]; /* of the files that are read as a whole */
};

enum status run_watch_open(struct env *env, const char *folder, struct run_watch *watch);
void run_watch_close(struct run_watch *watch); /* does nothing if all zero */

/* True if anything has changed. */
bool run_watch_look(struct run_watch *watch);

/* The columns of all steps and of all evaluations, merged until each has at most `most` values; 0:
 * as they are. */
void run_watch_series(const struct run_watch *watch, int64_t most, struct text *text);
/* What has been added since the last call, and what changed: for pages that have everything up to
 * there. */
void run_watch_news(struct run_watch *watch, struct text *text);
/* State, configuration, summary, samples, checkpoints: one object. */
void run_watch_about(const struct run_watch *watch, struct text *text);

/* --- run_layout.c --------------------------------------------------------------------------- */
/* {"ranks":...}: which rank holds which shard of which tensor, and the planned memory of each rank;
 * or {"error":"..."}, from the log of `env`. `yaml` is the config.yaml of a run. Reads no other file. */
void run_layout_print(struct env *env, const char *yaml, int ranks, struct text *text);

/* --- run_trace.c ---------------------------------------------------------------------------- */
enum { RUN_TRACED = 256 }; /* ranks that are shown at most */
/* The first traced step of the run's trace-rank-*.json; "null" without a trace. At most `most`
 * spans. */
void run_trace_print(struct env *env, const char *folder, int ranks, int64_t most,
                     struct text *text);

#endif
