/* rank_report -- each line of the book is one write to a file opened for appending:
 *
 *     start RANK PID HOST
 *     stepping RANK
 *     saved RANK
 *     error RANK
 *     end RANK STATUS text of the first error
 *     fall RANK STATUS text of the first error         (before it joined the others)
 */
#include "cli/rank_report.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/text.h"

enum { LINE_BYTES = RANK_ERROR_BYTES + 64, HOST_BYTES = 64 };

/* --- a rank's side -------------------------------------------------------------------------- */

bool rank_report_wanted(void)
{
    const char *path = getenv(RANK_REPORT_VARIABLE);
    return path && *path;
}

static void name_host(char *host)
{
    if (gethostname(host, HOST_BYTES) != 0)
        strcpy(host, "?");
    host[HOST_BYTES - 1] = 0;
}

static void append(const char *line, size_t bytes)
{
    char host[HOST_BYTES];
    const char *address = getenv(RANK_REPORT_VARIABLE), *path = strchr(address, ' ');
    name_host(host);
    if (!path || strlen(host) != (size_t)(path - address) ||
        strncmp(address, host, strlen(host)) != 0)
        return;
    int file = open(path + 1, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0)
        return; /* the supervisor has exited */
    ssize_t written = write(file, line, bytes);
    (void)written; /* must not fail the rank; without its line it counts as killed */
    close(file);
}

void rank_report_start(int rank)
{
    char line[LINE_BYTES], host[HOST_BYTES];
    if (!rank_report_wanted())
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    name_host(host);
    int bytes = snprintf(line, sizeof line, "start %d %d %s\n", rank, (int)getpid(), host);
    append(line, (size_t)bytes);
}

static void report_word(const char *word, int rank)
{
    char line[LINE_BYTES];
    if (!rank_report_wanted())
        return;
    int bytes = snprintf(line, sizeof line, "%s %d\n", word, rank);
    append(line, (size_t)bytes);
}

void rank_report_stepping(int rank)
{
    report_word("stepping", rank);
}

void rank_report_saved(int rank)
{
    report_word("saved", rank);
}

void rank_report_error(int rank)
{
    report_word("error", rank);
}

void rank_report_end(int rank, enum status st, const char *error, bool met)
{
    char line[LINE_BYTES];
    if (!rank_report_wanted())
        return;
    snprintf(line, sizeof line - 1, "%s %d %s %s", met ? "end" : "fall", rank, status_name(st),
             error);
    for (char *c = line; *c; c++) {
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    }
    strcat(line, "\n");
    append(line, strlen(line));
}

/* --- the supervisor's side ------------------------------------------------------------------ */

enum { UNWATCHED = -1, DEAD = -2 };

struct rank_book {
    struct env *env; /* borrowed */
    char address[HOST_BYTES + 64], host[HOST_BYTES];
    int file;       /* in memory */
    int deaths;     /* epoll of the processes of the ranks */
    int *processes; /* (size) descriptors, or UNWATCHED, or DEAD */
    int size, started, exits, looks;
    struct text lines;           /* read but incomplete */
    struct rank_entry entries[]; /* (size) */
};

enum status rank_book_create(struct env *env, int size, struct rank_book **book)
{
    enum status st;
    struct rank_book *b;
    size_t n = (size_t)size;
    TRY(mem_alloc(env, MEM_OTHER, "rank book", sizeof *b + n * sizeof b->entries[0], &b));
    TRY_OR(undo_self,
           mem_alloc_array(env, MEM_OTHER, "rank book", n, sizeof *b->processes, &b->processes));
    b->env = env;
    b->size = size;
    for (int r = 0; r < size; r++) {
        b->entries[r].rank = r;
        b->processes[r] = UNWATCHED;
    }
    name_host(b->host);
    text_init(&b->lines, env);
    b->file = memfd_create("sifr ranks", MFD_CLOEXEC);
    b->deaths = epoll_create1(EPOLL_CLOEXEC);
    snprintf(b->address, sizeof b->address, "%s /proc/%d/fd/%d", b->host, (int)getpid(), b->file);
    if (b->file < 0 || b->deaths < 0) {
        st = FAIL(env, IO, "cannot watch the ranks: %s", strerror(errno));
        rank_book_destroy(b);
        return st;
    }
    *book = b;
    return STATUS_OK;
undo_self:
    mem_free(env, b);
    return st;
}

void rank_book_destroy(struct rank_book *book)
{
    if (!book)
        return;
    for (int r = 0; r < book->size; r++) {
        if (book->processes[r] >= 0)
            close(book->processes[r]);
    }
    if (book->deaths >= 0)
        close(book->deaths);
    if (book->file >= 0)
        close(book->file);
    text_free(&book->lines);
    mem_free(book->env, book->processes);
    mem_free(book->env, book);
}

const char *rank_book_address(const struct rank_book *book)
{
    return book->address;
}

int rank_book_started(const struct rank_book *book)
{
    return book->started;
}

const struct rank_entry *rank_book_entry(const struct rank_book *book, int rank)
{
    return &book->entries[rank];
}

/* epoll reports deaths in their order, which matters: a launcher kills the other ranks immediately
 * when one dies. */
static void watch_process(struct rank_book *book, struct rank_entry *entry)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)entry->rank};
    int process = (int)syscall(SYS_pidfd_open, entry->pid, 0);
    if (process >= 0 && epoll_ctl(book->deaths, EPOLL_CTL_ADD, process, &event) == 0)
        book->processes[entry->rank] = process;
    else if (process >= 0)
        close(process);
}

static enum status status_of_name(const char *name)
{
    for (int st = STATUS_OK; st <= STATUS_FIT; st++) {
        if (strcmp(status_name((enum status)st), name) == 0)
            return (enum status)st;
    }
    return STATUS_INTERNAL;
}

static void take_line(struct rank_book *book, const char *line)
{
    int rank = -1, pid = 0, used = 0;
    char word[HOST_BYTES] = "";
    if (sscanf(line, "start %d %d %63s", &rank, &pid, word) == 3) {
        if (rank < 0 || rank >= book->size || book->entries[rank].pid != 0)
            return;
        book->started++;
        book->entries[rank].pid = pid;
        book->entries[rank].local = strcmp(word, book->host) == 0;
        if (book->entries[rank].local)
            watch_process(book, &book->entries[rank]);
    } else if (sscanf(line, "stepping %d", &rank) == 1) {
        if (rank >= 0 && rank < book->size)
            book->entries[rank].stepping = true;
    } else if (sscanf(line, "saved %d", &rank) == 1) {
        if (rank >= 0 && rank < book->size)
            book->entries[rank].saved = true;
    } else if (sscanf(line, "error %d", &rank) == 1) {
        if (rank >= 0 && rank < book->size && book->entries[rank].failed_look == 0)
            book->entries[rank].failed_look = book->looks;
    } else if (sscanf(line, "end %d %63s%n", &rank, word, &used) == 2 ||
               sscanf(line, "fall %d %63s%n", &rank, word, &used) == 2) {
        if (rank < 0 || rank >= book->size || book->entries[rank].ended)
            return;
        struct rank_entry *entry = &book->entries[rank];
        entry->ended = true;
        entry->met = line[0] == 'e';
        entry->gone = false;
        entry->exit_order = ++book->exits;
        entry->look = book->looks;
        entry->status = status_of_name(word);
        snprintf(entry->error, sizeof entry->error, "%s", line + used + (line[used] == ' '));
    }
}

static void read_lines(struct rank_book *book)
{
    char block[4096];
    ssize_t bytes;
    while ((bytes = read(book->file, block, sizeof block)) > 0)
        text_add_bytes(&book->lines, block, (size_t)bytes);
    char *line = book->lines.data, *end;
    while (line && (end = strchr(line, '\n'))) {
        *end = 0;
        take_line(book, line);
        line = end + 1;
    }
    if (line && line != book->lines.data) {
        size_t left = strlen(line);
        memmove(book->lines.data, line, left + 1);
        book->lines.bytes = left;
    }
}

static bool has_process(const struct rank_book *book, const struct rank_entry *entry)
{
    int process = book->processes[entry->rank];
    if (!entry->local || entry->gone || process == DEAD)
        return false;
    return process >= 0 || kill(entry->pid, 0) == 0 || errno != ESRCH;
}

static void note_death(struct rank_book *book, struct rank_entry *entry)
{
    if (book->processes[entry->rank] >= 0)
        close(book->processes[entry->rank]);
    book->processes[entry->rank] = DEAD;
    if (!entry->ended) /* its last line may be newer than the last read */
        read_lines(book);
    if (entry->ended || entry->gone)
        return;
    entry->gone = true;
    entry->exit_order = ++book->exits;
    entry->look = book->looks;
}

void rank_book_update(struct rank_book *book)
{
    struct epoll_event events[64];
    int count;
    book->looks++;
    read_lines(book);
    while ((count = epoll_wait(book->deaths, events, 64, 0)) > 0) {
        for (int i = 0; i < count; i++)
            note_death(book, &book->entries[events[i].data.u32]);
    }
    for (int r = 0; r < book->size; r++) { /* ranks without a process descriptor */
        struct rank_entry *entry = &book->entries[r];
        if (entry->local && !entry->ended && !has_process(book, entry))
            note_death(book, entry);
    }
}

bool rank_entry_stopped(const struct rank_entry *entry)
{
    return entry->ended && (entry->status == STATUS_STOPPED || entry->status == STATUS_SAVED);
}

/* A rank that stops before it joined the others makes them fail. */
static bool has_failed(const struct rank_entry *entry)
{
    return entry->ended && entry->status != STATUS_OK &&
           (!rank_entry_stopped(entry) || !entry->met);
}

/* The update that first learnt of a failure. */
static int first_failure(const struct rank_book *book)
{
    int first = INT_MAX;
    for (int r = 0; r < book->size; r++) {
        const struct rank_entry *entry = &book->entries[r];
        int look = entry->failed_look ? entry->failed_look : has_failed(entry) ? entry->look : 0;
        if (look > 0 && look < first)
            first = look;
    }
    return first;
}

/* 0 = did not fail; otherwise a smaller number is nearer to the cause. A death that made others
 * fail is found by the update that reads their lines, or earlier; a death found later was caused by
 * the launcher. */
static int blame(const struct rank_entry *entry, int failure)
{
    if (entry->gone)
        return entry->look > failure ? 2 : 1;
    if (!has_failed(entry))
        return entry->ended && entry->status != STATUS_OK ? 3 : 0;
    return entry->status == STATUS_COMM ? 2 : 1;
}

const struct rank_entry *rank_book_verdict(const struct rank_book *book)
{
    const struct rank_entry *worst = NULL;
    int failure = first_failure(book), most = 0;
    for (int r = 0; r < book->size; r++) {
        const struct rank_entry *entry = &book->entries[r];
        int own = blame(entry, failure);
        if (own == 0 || (worst && own > most) ||
            (worst && own == most && entry->exit_order > worst->exit_order))
            continue;
        worst = entry;
        most = own;
    }
    return worst;
}

int rank_book_alive(const struct rank_book *book)
{
    int alive = 0;
    for (int r = 0; r < book->size; r++)
        alive += has_process(book, &book->entries[r]);
    return alive;
}

int rank_book_silent(const struct rank_book *book)
{
    int silent = 0;
    for (int r = 0; r < book->size; r++) {
        const struct rank_entry *entry = &book->entries[r];
        silent += has_process(book, entry) && !entry->ended && entry->failed_look == 0;
    }
    return silent;
}

void rank_book_signal(const struct rank_book *book, int number)
{
    for (int r = 0; r < book->size; r++) {
        int process = book->processes[r];
        if (process >= 0) /* the pid may have been reused by now */
            syscall(SYS_pidfd_send_signal, process, number, NULL, 0);
        else if (has_process(book, &book->entries[r])) /* no descriptor: the pid is all we have */
            kill(book->entries[r].pid, number);
    }
}
