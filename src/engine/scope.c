/* scope -- informs other ranks, the launcher, the trace and the watcher. */
#include "engine/scope.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/progress.h"
#include "unit/unit.h"

static void tell(struct scopes *s, const struct scope *scope)
{
    char text[sizeof s->phase + UNIT_NAME + 16];
    bool is_phase = scope->kind == SCOPE_PHASE;
    if (is_phase)
        snprintf(s->phase, sizeof s->phase, "%s %" PRId64, scope->words, scope->step);
    if ((!s->comm && !s->env->progress) || s->silent)
        return;
    if (is_phase)
        snprintf(text, sizeof text, "%s", s->phase);
    else
        snprintf(text, sizeof text, "%s%s%s%s%s", s->phase, *s->phase ? ", " : "", scope->words,
                 scope->object ? " " : "", scope->object ? scope->object : "");
    progress_note(s->env, text);
    if (s->comm)
        comm_note(s->comm, text);
}

void scope_begin(struct scopes *scopes, struct scope *scope)
{
    if (scope->words)
        tell(scopes, scope);
    if (scopes->watch)
        scopes->watch(scopes->user, scope, true);
    if (scope->stream)
        scope->mark = stream_span_begin(scope->stream, &scope->span);
    else
        scope->start = trace_begin(scopes->env->trace);
}

void scope_end(struct scopes *scopes, const struct scope *scope)
{
    if (scopes->watch)
        scopes->watch(scopes->user, scope, false);
    if (scope->stream)
        stream_span_end(scope->stream, scope->mark);
    else if (scope->span.name)
        trace_end(scopes->env->trace, scope->start, &scope->span);
}
