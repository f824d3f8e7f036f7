/* launch_outcome -- which rank ended a job, and the message about it. The rank book has the order
 * of events; the output of the launcher has what the book cannot know: the number of a signal, and
 * ranks on other machines. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "cli/launch/launch_impl.h"

/* The signal that ended a rank, from the output of the launcher; 0 = not found. */
static int named_signal(const struct job *job, const struct rank_entry *rank)
{
    bool is_open = job->launcher.kind == MPI_KIND_OPEN;
    const char *said = text_string(&job->kept);
    const char *words = is_open ? "exited on signal " : "(signal ";
    char who[64];
    if (job->order->alone)
        return WIFSIGNALED(job->wait_status) ? WTERMSIG(job->wait_status) : 0;
    if (is_open)
        snprintf(who, sizeof who, "process rank %d with PID", rank->rank);
    else
        snprintf(who, sizeof who, "=   PID %d RUNNING", (int)rank->pid);
    said = strstr(said, who);
    said = said ? strstr(said, words) : NULL;
    return said ? atoi(said + strlen(words)) : 0;
}

static void show_kept(const struct job *job)
{
    if (!job->order->verbose && job->kept.bytes)
        console_pass_errors(job->cli->console, text_string(&job->kept));
}

static enum status died(const struct job *job, enum status st, struct launch_end *end)
{
    end->died = !job->stop_wanted;
    return st;
}

static enum status killed(const struct job *job, const struct rank_entry *rank,
                          struct launch_end *end)
{
    int number = named_signal(job, rank);
    char who[64], how[96] = " or exited without a report";
    if (number != SIGKILL && number != SIGTERM) /* its own output may tell why */
        show_kept(job);
    if (job->order->alone)
        snprintf(who, sizeof who, "the run's process (pid %d)", (int)rank->pid);
    else
        snprintf(who, sizeof who, "rank %d (pid %d)", rank->rank, (int)rank->pid);
    if (number)
        snprintf(how, sizeof how, " by signal %d%s", number,
                 number == SIGKILL ? " (by a user, or out of memory: see dmesg)" : "");
    snprintf(end->words, sizeof end->words, "%s was killed%s%s", who, how,
             job->order->alone ? "" : "; the other ranks were ended");
    return died(job, STATUS_COMM, end);
}

/* Open MPI names a killed rank of another machine, which is not in the book. That is the cause;
 * reports of other ranks are its consequences. */
static bool killed_elsewhere(const struct job *job, struct launch_end *end)
{
    int rank, pid, number;
    char host[64];
    const char *said = strstr(text_string(&job->kept), "process rank ");
    if (!said || sscanf(said, "process rank %d with PID %d on node %63s exited on signal %d", &rank,
                        &pid, host, &number) != 4)
        return false;
    if (rank < 0 || rank >= launch_reporters(job->order) ||
        rank_book_entry(job->book, rank)->pid != 0)
        return false;
    snprintf(end->words, sizeof end->words,
             "rank %d (pid %d on %s) was killed by signal %d; the other ranks were ended", rank,
             pid, host, number);
    return true;
}

/* A rank that stopped because another one failed may have logged the cause: it is not printed
 * again. */
static enum status failed(const struct job *job, const struct rank_entry *rank,
                          struct launch_end *end)
{
    const char *all = text_string(&job->said);
    bool by_another = rank->status == STATUS_COMM && strstr(all, "error: ");
    char who[32] = "";
    end->said = by_another || !*rank->error || strstr(all, rank->error);
    if (!end->said)
        snprintf(who, sizeof who, "rank %d: ", rank->rank);
    snprintf(end->words, sizeof end->words, "%s%.*s", who, (int)sizeof end->words / 2, rank->error);
    bool may_restart = rank->status == STATUS_COMM || rank->status == STATUS_DEVICE ||
                       rank->status == STATUS_INTERNAL;
    return may_restart ? died(job, rank->status, end) : rank->status;
}

/* The launcher has failed, and no rank has reported a failure. */
static enum status launcher_failed(const struct job *job)
{
    int code = WIFEXITED(job->wait_status) ? WEXITSTATUS(job->wait_status) : 1;
    bool explained = strstr(text_string(&job->said), "error: ") != NULL;
    for (int st = STATUS_USAGE; explained && st <= STATUS_FIT; st++) {
        if (status_exit_code((enum status)st) == code)
            return (enum status)st;
    }
    if (explained)
        return STATUS_COMM;
    show_kept(job);
    return FAIL(job->cli->env, COMM, "%s failed (%s %d)", job->launcher.path,
                WIFEXITED(job->wait_status) ? "exit" : "signal",
                WIFEXITED(job->wait_status) ? code : WTERMSIG(job->wait_status));
}

/* Ranks save together: if one has reported the end of the save, all is saved. */
static bool is_saved(const struct job *job)
{
    for (int rank = 0; rank < launch_reporters(job->order); rank++) {
        const struct rank_entry *entry = rank_book_entry(job->book, rank);
        if (entry->saved || (entry->ended && entry->status == STATUS_SAVED))
            return true;
    }
    return false;
}

enum status launch_outcome(const struct job *job, struct launch_end *end)
{
    const struct rank_entry *verdict = rank_book_verdict(job->book);
    bool unexplained = !verdict || verdict->gone;
    /* mpirun was killed, but not by the supervisor; the ranks end with it. */
    bool launcher_killed = WIFSIGNALED(job->wait_status) && job->ending == 0;
    if (job->quit && is_saved(job)) {
        log_info(job->cli->env, "%s", job->order->saves ? CLI_ENDED_SAVED : CLI_ENDED_UNSAVED);
        return STATUS_SAVED;
    }
    if (job->quit)
        return FAIL(job->cli->env, STOPPED, "%s", CLI_ENDED);
    if (unexplained && killed_elsewhere(job, end))
        return died(job, STATUS_COMM, end);
    if (unexplained && launcher_killed && !(verdict && job->order->alone)) {
        snprintf(end->words, sizeof end->words,
                 "%.200s (pid %d) was killed by signal %d; the ranks ended with it",
                 job->launcher.path, (int)job->pid, WTERMSIG(job->wait_status));
        return died(job, STATUS_COMM, end);
    }
    if (verdict)
        return verdict->gone ? killed(job, verdict, end) : failed(job, verdict, end);
    return job->wait_status == 0 ? STATUS_OK : launcher_failed(job);
}
