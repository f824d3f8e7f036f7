/* rank_report -- how the ranks of a job report their state to the supervisor that started them.
 *
 * The ranks append lines to a shared book: when they start, when the first step begins, when they
 * have failed, when everything is saved, and when they end. The order of the lines is the order of
 * events, so the first failure is known whatever exit code the launcher in between returns. A rank
 * whose process is gone without a last line was killed. The book is memory of the supervisor,
 * opened through /proc, so no file is left behind. Ranks on other machines cannot write to it; for
 * them the supervisor knows only the exit code of the launcher.
 */
#ifndef CLI_RANK_REPORT_H
#define CLI_RANK_REPORT_H
#include <stdbool.h>
#include <sys/types.h>
#include "base/env.h"

/* --- for ranks; these do nothing in a process without a supervisor ------------------------- */

#define RANK_REPORT_VARIABLE "SIFR_LAUNCH_STATUS" /* "HOST PATH" of the book */
#define RANK_NOHUP_VARIABLE  "SIFR_LAUNCH_NOHUP"  /* set = the supervisor ignores SIGHUP */
bool rank_report_wanted(void);
/* Also makes the process exit with its parent. Signal handlers must be installed before: the
 * supervisor may send signals from here on. */
void rank_report_start(int rank);
/* The first step is about to begin. */
void rank_report_stepping(int rank);
/* The run is completely saved; the ranks are about to exit, which may take a while. */
void rank_report_saved(int rank);
/* This rank has failed. Reported immediately, because exiting may take seconds. */
void rank_report_error(int rank);
/* `error`: the first error of this rank, "" = none. `met`: it had begun to join the others, so they
 * learn of its failure; otherwise they still wait for it. */
void rank_report_end(int rank, enum status st, const char *error, bool met);

/* --- for the supervisor --------------------------------------------------------------------- */

enum { RANK_ERROR_BYTES = 1024 };
struct rank_entry {
    int rank;
    pid_t pid;          /* 0 = has not started */
    bool local;         /* on this machine */
    bool ended;         /* reported its end */
    bool stepping;      /* reported its first step */
    bool saved;         /* reported that the run is saved */
    bool gone;          /* its process is gone without a report */
    int exit_order;     /* 1, 2, ... in the order in which ranks ended or were found gone */
    bool met;           /* with `ended`: the others know of it */
    int look;           /* number of the update that found the end */
    int failed_look;    /* number of the update that learnt of the failure; 0 = none */
    enum status status; /* with `ended` */
    char error[RANK_ERROR_BYTES];
};

struct rank_book;
enum status rank_book_create(struct env *env, int size, struct rank_book **book);
void rank_book_destroy(struct rank_book *book);              /* NULL is fine */
const char *rank_book_address(const struct rank_book *book); /* for the ranks' environment */

void rank_book_update(struct rank_book *book); /* read new lines; find dead processes */
int rank_book_started(const struct rank_book *book);
const struct rank_entry *rank_book_entry(const struct rank_book *book, int rank);
/* The rank that made the job fail: the first that failed itself, was killed, or stopped before it
 * joined the others; otherwise the first that ended because of another (a launcher kills the
 * remaining ranks); otherwise the first that was stopped. NULL = no failure. */
const struct rank_entry *rank_book_verdict(const struct rank_book *book);
bool rank_entry_stopped(const struct rank_entry *entry); /* ended because of a request to stop */
/* Number of local ranks that still have a process; and of those that have not reported an end or an
 * error either. */
int rank_book_alive(const struct rank_book *book);
int rank_book_silent(const struct rank_book *book);
/* Send a signal to all local ranks that still have a process. */
void rank_book_signal(const struct rank_book *book, int number);

#endif
