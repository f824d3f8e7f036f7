/* rank_report -- see the header. A line is one write to a file opened for appending:
 *
 *     start RANK PID HOST
 *     end RANK STATUS text of the first error
 */
#include "cli/rank_report.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "base/text.h"

enum { LINE_BYTES = RANK_ERROR_BYTES + 64, HOST_BYTES = 64 };

/* --- a rank's side -------------------------------------------------------------------------- */

bool rank_report_wanted(void)
{
    const char *path = getenv(RANK_REPORT_VARIABLE);
    return path && *path;
}

static void append(const char *line, size_t bytes)
{
    int file = open(getenv(RANK_REPORT_VARIABLE), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0)
        return; /* another machine: the supervisor has only the launcher's word for this rank */
    ssize_t written = write(file, line, bytes);
    (void)written; /* a full disk must not end a rank; without a line it counts as killed */
    close(file);
}

static void name_host(char *host)
{
    if (gethostname(host, HOST_BYTES) != 0)
        strcpy(host, "?");
    host[HOST_BYTES - 1] = 0;
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

void rank_report_end(int rank, enum status st, const char *error)
{
    char line[LINE_BYTES];
    if (!rank_report_wanted())
        return;
    snprintf(line, sizeof line - 1, "end %d %s %s", rank, status_name(st), error);
    for (char *c = line; *c; c++) {
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    }
    strcat(line, "\n");
    append(line, strlen(line));
}

/* --- the supervisor's side ------------------------------------------------------------------ */

struct rank_book {
    struct env *env; /* borrowed */
    char path[256], host[HOST_BYTES];
    int file;
    int size, started, places;
    struct text lines;           /* read, from the first that is not complete */
    struct rank_entry entries[]; /* (size) */
};

enum status rank_book_create(struct env *env, int size, struct rank_book **book)
{
    enum status st;
    struct rank_book *b;
    const char *folder = getenv("TMPDIR");
    TRY(mem_alloc(env, MEM_OTHER, "rank book", sizeof *b + (size_t)size * sizeof b->entries[0],
                  &b));
    b->env = env;
    b->size = size;
    for (int r = 0; r < size; r++)
        b->entries[r].rank = r;
    name_host(b->host);
    text_init(&b->lines, env);
    snprintf(b->path, sizeof b->path, "%s/sifr-ranks.XXXXXX", folder && *folder ? folder : "/tmp");
    b->file = mkostemp(b->path, O_CLOEXEC);
    if (b->file < 0) {
        st = FAIL(env, IO, "cannot make a file in '%s': %s; TMPDIR names another folder", b->path,
                  strerror(errno));
        mem_free(env, b);
        return st;
    }
    *book = b;
    return STATUS_OK;
}

void rank_book_destroy(struct rank_book *book)
{
    if (!book)
        return;
    unlink(book->path);
    close(book->file);
    text_free(&book->lines);
    mem_free(book->env, book);
}

const char *rank_book_path(const struct rank_book *book)
{
    return book->path;
}

int rank_book_started(const struct rank_book *book)
{
    return book->started;
}

const struct rank_entry *rank_book_entry(const struct rank_book *book, int rank)
{
    return &book->entries[rank];
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
    } else if (sscanf(line, "end %d %63s%n", &rank, word, &used) == 2) {
        if (rank < 0 || rank >= book->size || book->entries[rank].ended)
            return;
        struct rank_entry *entry = &book->entries[rank];
        entry->ended = true;
        entry->gone = false;
        entry->place = ++book->places;
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

static bool has_process(const struct rank_entry *entry)
{
    return entry->pid != 0 && entry->local && !(kill(entry->pid, 0) != 0 && errno == ESRCH);
}

void rank_book_update(struct rank_book *book)
{
    bool missed = false;
    read_lines(book);
    for (int r = 0; r < book->size; r++) {
        struct rank_entry *entry = &book->entries[r];
        if (!entry->local || entry->ended || entry->gone || has_process(entry))
            continue;
        if (!missed) /* its last line may have come after we had read */
            read_lines(book);
        missed = true;
        if (entry->ended)
            continue;
        entry->gone = true;
        entry->place = ++book->places;
    }
}

/* 0 = did not fail; the smaller, the nearer to the cause. */
static int blame(const struct rank_entry *entry)
{
    if (entry->gone)
        return 1;
    if (!entry->ended || entry->status == STATUS_OK)
        return 0;
    return entry->status == STATUS_STOPPED ? 3 : entry->status == STATUS_COMM ? 2 : 1;
}

const struct rank_entry *rank_book_verdict(const struct rank_book *book)
{
    const struct rank_entry *worst = NULL;
    for (int r = 0; r < book->size; r++) {
        const struct rank_entry *entry = &book->entries[r];
        if (blame(entry) == 0)
            continue;
        if (!worst || blame(entry) < blame(worst) ||
            (blame(entry) == blame(worst) && entry->place < worst->place))
            worst = entry;
    }
    return worst;
}

void rank_book_kill(const struct rank_book *book)
{
    for (int r = 0; r < book->size; r++) {
        if (has_process(&book->entries[r]))
            kill(book->entries[r].pid, SIGKILL);
    }
}
