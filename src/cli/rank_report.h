/* rank_report -- how the ranks of a job tell the supervisor that started them how they fare.
 *
 * One book of lines that ranks append to: one when a rank starts, one when it ends, and before that
 * one when its first step begins, and when it knows that it has failed, or that all is saved. The
 * order of the lines is the order of events, so the first failure is known, whatever the launcher
 * in between makes of exit codes. A rank whose process is gone without a last line was killed. The
 * book is in the supervisor's memory and is opened through /proc, so nothing is left behind; ranks
 * on other machines can't write in it, and there is only the launcher's word for them.
 */
#ifndef CLI_RANK_REPORT_H
#define CLI_RANK_REPORT_H
#include <stdbool.h>
#include <sys/types.h>
#include "base/env.h"

/* --- a rank's side: nothing happens in a process that no supervisor started ----------------- */

#define RANK_REPORT_VARIABLE "SIFR_LAUNCH_STATUS" /* "HOST PATH" of the book */
#define RANK_NOHUP_VARIABLE  "SIFR_LAUNCH_NOHUP"  /* set: the supervisor ignores SIGHUP */
bool rank_report_wanted(void);
/* Also makes the process end when its parent does. Signals are to be in place by now: the
 * supervisor may send them from here on. */
void rank_report_start(int rank);
/* The first step is about to begin. */
void rank_report_stepping(int rank);
/* All of the run is saved, and the ranks are about to end, which may take them a while. */
void rank_report_saved(int rank);
/* This rank has failed, and is about to end: said at once, for ending may take it seconds. */
void rank_report_error(int rank);
/* `error`: the first one of this rank, "" = none. `met`: it had set out to meet the others, who
 * know of its failure from itself; else they still wait for it. */
void rank_report_end(int rank, enum status st, const char *error, bool met);

/* --- the supervisor's side ------------------------------------------------------------------ */

enum { RANK_ERROR_BYTES = 1024 };
struct rank_entry {
    int rank;
    pid_t pid;          /* 0 = has not started */
    bool local;         /* on this machine */
    bool ended;         /* told us so */
    bool stepping;      /* told us that it makes steps */
    bool saved;         /* told us that the run is */
    bool gone;          /* has no process any more, and said nothing */
    int place;          /* 1, 2, ... in the order in which ranks ended or were found gone */
    bool met;           /* of `ended`: the others know */
    int look;           /* the update that found this */
    int failed_look;    /* the update that learnt that it has failed; 0 = none */
    enum status status; /* of `ended` */
    char error[RANK_ERROR_BYTES];
};

struct rank_book;
enum status rank_book_create(struct env *env, int size, struct rank_book **book);
void rank_book_destroy(struct rank_book *book);              /* NULL is fine */
const char *rank_book_address(const struct rank_book *book); /* for the ranks' environment */

void rank_book_update(struct rank_book *book); /* read what is new; look who is gone */
int rank_book_started(const struct rank_book *book);
const struct rank_entry *rank_book_entry(const struct rank_book *book, int rank);
/* The rank that made the job fail: the first that failed by itself or was killed, or stopped before
 * it had met the others, who wait for it; else the first that ended because of another (a launcher
 * kills those that have not ended by then), else the first that was stopped; NULL = all is well. */
const struct rank_entry *rank_book_verdict(const struct rank_book *book);
bool rank_entry_stopped(const struct rank_entry *entry); /* told us that it was asked to stop */
/* Local ranks that still have a process; of them, those that have told nothing of an end or an
 * error. */
int rank_book_alive(const struct rank_book *book);
int rank_book_silent(const struct rank_book *book);
/* To local ranks that still have a process. */
void rank_book_signal(const struct rank_book *book, int number);

#endif
