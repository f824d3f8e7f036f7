/* scope -- what a rank is doing now. A scope begins and ends; one call informs everybody who wants
 * to know:
 *
 *     trainer    | step 12 ------------------------------------------------------------- |
 *     pipeline     | F3 ---------------------------- |  | B3 ------------- |
 *     engine         block 4 forward | block 5 forward    block 5 backward ...  gradient norm
 *
 *     words      tell the ranks that wait for this one, and the launcher, what it is doing:
 *                "step 12, block 3 backward". They hold until a scope with other words begins.
 *     span       is drawn in the trace, on its lane
 *     watcher    is called when a scope begins and when it ends: a plan times passes this way
 *
 * Beginning and ending a scope allocates nothing. A rank on a dry device tells nobody.
 */
#ifndef ENGINE_SCOPE_H
#define ENGINE_SCOPE_H
#include "base/trace.h"
#include "comm/comm.h"
#include "engine/timetable.h"

enum scope_kind {
    SCOPE_DETAIL, /* part of another scope */
    SCOPE_PHASE,  /* of a run: its words precede those of all scopes until the next phase begins */
    SCOPE_ACTION, /* a pass of a timetable, from the moment its input is there; without a pipeline,
                     a whole round, which counts as a forward pass */
    SCOPE_JUDGE   /* from the last pass until all ranks know the gradient norm */
};

struct scope {
    enum scope_kind kind;
    const char *words,
        *object;            /* "block 3" and "backward"; words NULL: not told; object may be NULL */
    int64_t step;           /* of a phase: follows its words */
    struct trace_span span; /* span.name NULL: not drawn */
    struct stream *stream;  /* borrowed: the span is timed in its order; NULL: on the host */
    const struct timetable_action *action; /* of SCOPE_ACTION: which pass */
    double start;                          /* set by scope_begin, without a stream */
    int64_t mark;                          /* set by scope_begin, with a stream */
};

typedef void scope_watch_fn(void *user, const struct scope *scope, bool begins);

/* Who is informed. */
struct scopes {
    struct env *env;       /* borrowed: its progress and its trace */
    struct comm *comm;     /* borrowed: any communicator of the job; NULL: one rank */
    bool silent;           /* on a dry device: no words are sent */
    char phase[64];        /* "step 12" */
    scope_watch_fn *watch; /* NULL: none. Called on the thread that steps */
    void *user;            /* borrowed */
};

/* A scope that has begun and never ends, because of an error, leaves only its words behind. */
void scope_begin(struct scopes *scopes, struct scope *scope);
void scope_end(struct scopes *scopes, const struct scope *scope);

#endif
