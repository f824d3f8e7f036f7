/* spans -- the spans of a trace, as its file has them. */
#ifndef TESTS_SPANS_H
#define TESTS_SPANS_H
#include <jansson.h>
#include <unistd.h>
#include "base/trace.h"
#include "testing.h"

/* The events of the file; the caller owns them. Its times are clock_seconds values. */
static inline json_t *spans_written(struct trace *trace)
{
    char path[] = "/tmp/sifr-spans-XXXXXX";
    json_error_t error;
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    trace_set_origin(trace, 0);
    assert_ok(trace_write(trace, 0, "test", path));
    json_t *root = json_load_file(path, 0, &error);
    unlink(path);
    if (root == NULL)
        fail_msg("line %d: %s", error.line, error.text);
    json_t *events = json_incref(json_object_get(root, "traceEvents"));
    json_decref(root);
    return events;
}

/* The lane of a span, as its file names it; NULL for other events. Spans that overlap are on further
 * threads of the same lane. */
static inline const char *span_lane(json_t *events, json_t *span)
{
    size_t i;
    json_t *event;
    if (json_object_get(span, "dur") == NULL)
        return NULL;
    json_int_t row = json_integer_value(json_object_get(span, "tid")) % TRACE_ROWS;
    json_array_foreach(events, i, event)
    {
        if (strcmp(json_string_value(json_object_get(event, "name")), "thread_name") == 0 &&
            json_integer_value(json_object_get(event, "tid")) == row)
            return json_string_value(json_object_get(json_object_get(event, "args"), "name"));
    }
    fail_msg("a span on a lane without a name");
    return NULL;
}

struct span_times {
    int count;         /* spans of that name on that lane */
    double start, end; /* of the last one, in seconds */
    int64_t bytes;     /* 0 = none */
};

static inline struct span_times spans_find(json_t *events, const char *lane, const char *name)
{
    size_t i;
    json_t *event;
    struct span_times found = {0};
    json_array_foreach(events, i, event)
    {
        const char *of = span_lane(events, event);
        if (of == NULL || strcmp(of, lane) != 0 ||
            strcmp(json_string_value(json_object_get(event, "name")), name) != 0)
            continue;
        found.count++;
        found.start = 1e-6 * json_number_value(json_object_get(event, "ts"));
        found.end = found.start + 1e-6 * json_number_value(json_object_get(event, "dur"));
        found.bytes = json_integer_value(json_object_get(json_object_get(event, "args"), "bytes"));
    }
    return found;
}

#endif
