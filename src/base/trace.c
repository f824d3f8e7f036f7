/* trace -- one array for all threads.
 *
 * A thread claims the next element with an atomic counter and marks it done when it is filled. The
 * writer skips elements that are not done, so a trace can be written while workers still run.
 */
#include "base/trace.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

struct event {
    struct trace_span span;
    double start, end;
    _Atomic bool done;
};

struct trace {
    struct env *env; /* borrowed */
    _Atomic bool open;
    double origin;
    _Atomic int64_t taken;
    _Atomic int64_t left_out; /* not counting those beyond `room` */
    int64_t room;
    struct event *events;
};

const struct trace_lane trace_lane_compute = {.row = 0, .word = "compute"};
const struct trace_lane trace_lane_gather = {.row = 1, .word = "gather", .collective = true};
const struct trace_lane trace_lane_reduce = {.row = 2, .word = "reduce", .collective = true};
const struct trace_lane trace_lane_host = {.row = 3, .word = "host"};

enum status trace_create(struct env *env, int64_t spans, struct trace **trace)
{
    struct trace *t;
    CHECK_LE(1, spans);
    TRY(mem_alloc(env, MEM_OTHER, "trace", sizeof *t, &t));
    enum status st =
        mem_alloc_array(env, MEM_OTHER, "trace", (size_t)spans, sizeof *t->events, &t->events);
    if (st != STATUS_OK) {
        mem_free(env, t);
        return st;
    }
    t->env = env;
    t->room = spans;
    atomic_init(&t->open, false);
    atomic_init(&t->taken, 0);
    atomic_init(&t->left_out, 0);
    *trace = t;
    return STATUS_OK;
}

void trace_destroy(struct trace *trace)
{
    if (trace == NULL)
        return;
    mem_free(trace->env, trace->events);
    mem_free(trace->env, trace);
}

void trace_set_origin(struct trace *trace, double seconds)
{
    trace->origin = seconds;
}

void trace_open(struct trace *trace, bool open)
{
    atomic_store(&trace->open, open);
}

double trace_clock(const struct trace *trace)
{
    return atomic_load_explicit(&trace->open, memory_order_relaxed) ? clock_seconds() : -1.0;
}

/* The index of a new event, or -1. */
static int64_t take(struct trace *trace, const struct trace_span *span)
{
    int64_t index = atomic_fetch_add_explicit(&trace->taken, 1, memory_order_relaxed);
    if (index >= trace->room)
        return -1;
    trace->events[index].span = *span;
    return index;
}

void trace_end(struct trace *trace, double start, const struct trace_span *span)
{
    int64_t index = trace == NULL || start < 0 ? -1 : take(trace, span);
    if (index < 0)
        return;
    trace_set_start(trace, index, start);
    trace_set_end(trace, index, clock_seconds());
}

int64_t trace_claim(struct trace *trace, const struct trace_span *span)
{
    bool open = trace != NULL && atomic_load_explicit(&trace->open, memory_order_relaxed);
    return open ? take(trace, span) : -1;
}

void trace_set_start(struct trace *trace, int64_t claim, double seconds)
{
    trace->events[claim].start = seconds;
}

void trace_set_end(struct trace *trace, int64_t claim, double seconds)
{
    trace->events[claim].end = seconds;
    atomic_store_explicit(&trace->events[claim].done, true, memory_order_release);
}

int64_t trace_left_out(const struct trace *trace)
{
    int64_t taken = atomic_load(&trace->taken);
    return atomic_load(&trace->left_out) + (taken > trace->room ? taken - trace->room : 0);
}

void trace_leave_out(struct trace *trace)
{
    atomic_fetch_add_explicit(&trace->left_out, 1, memory_order_relaxed);
}

/* --- the file ------------------------------------------------------------------------------- */

/* The name of a process or thread ("process", "thread") and its position in the picture. */
static void add_meta(struct text *text, int rank, int row, const char *what, const char *name,
                     int index)
{
    text_printf(
        text, "{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s_name\",\"args\":{\"name\":", rank,
        row, what);
    text_json_string(text, name, strlen(name));
    text_printf(text,
                "}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s_sort_index\",\"args\":{"
                "\"sort_index\":%d}},\n",
                rank, row, what, index);
}

/* A viewer draws spans of one thread that are nested or follow each other, and no others. So spans
 * that overlap, like copies of two streams, go to further layers of their row: "in", "in 2". What
 * no layer has room for is in the last one. */
enum { LAYERS = 4, NESTED = 8 };

struct layer {
    bool used;
    int depth;
    double ends[NESTED]; /* of the spans that contain the newest one, and of itself */
};

struct drawn {
    const struct event *event;
    int layer;
};

static bool fits(struct layer *layer, const struct event *event)
{
    while (layer->depth > 0 && layer->ends[layer->depth - 1] <= event->start)
        layer->depth--;
    if (layer->depth == NESTED || (layer->depth > 0 && layer->ends[layer->depth - 1] < event->end))
        return false;
    layer->ends[layer->depth++] = event->end;
    return true;
}

/* A span comes before those that it contains. */
static int by_time(const void *a, const void *b)
{
    const struct event *x = ((const struct drawn *)a)->event, *y = ((const struct drawn *)b)->event;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (x->end != y->end)
        return x->end > y->end ? -1 : 1;
    return (x > y) - (x < y);
}

/* All spans that have ended, by time. Returns their number. */
static size_t place(const struct trace *trace, struct drawn *drawn,
                    struct layer layers[TRACE_ROWS][LAYERS])
{
    int64_t taken = atomic_load(&trace->taken);
    size_t count = 0;
    for (int64_t i = 0; i < taken && i < trace->room; i++)
        if (atomic_load_explicit(&trace->events[i].done, memory_order_acquire))
            drawn[count++].event = &trace->events[i];
    qsort(drawn, count, sizeof *drawn, by_time);
    for (size_t i = 0; i < count; i++) {
        int row = drawn[i].event->span.lane->row, layer = 0;
        CHECK_LT((unsigned)row, TRACE_ROWS);
        while (layer < LAYERS - 1 && !fits(&layers[row][layer], drawn[i].event))
            layer++;
        layers[row][layer].used = true;
        drawn[i].layer = layer;
    }
    return count;
}

static int thread_id(int row, int layer)
{
    return row + TRACE_ROWS * layer;
}

/* The lanes to name in the file, by row. */
static void find_lanes(const struct drawn *drawn, size_t count,
                       const struct trace_lane *lanes[TRACE_ROWS])
{
    static const struct trace_lane *const always[] = {&trace_lane_compute, &trace_lane_gather,
                                                      &trace_lane_reduce, &trace_lane_host};
    for (int i = 0; i < 4; i++)
        lanes[i] = always[i];
    for (size_t i = 0; i < count; i++) {
        const struct trace_lane *lane = drawn[i].event->span.lane;
        lanes[lane->row] = lane;
        for (int k = 0; k < lane->group_count; k++)
            lanes[lane->group[k].row] = &lane->group[k];
    }
}

static void add_names(struct text *text, const struct trace_lane *const lanes[TRACE_ROWS],
                      struct layer layers[TRACE_ROWS][LAYERS], int rank)
{
    char name[64];
    for (int row = 0; row < TRACE_ROWS; row++) {
        for (int k = 0; lanes[row] != NULL && k < LAYERS; k++) {
            if (k > 0 && !layers[row][k].used)
                continue;
            snprintf(name, sizeof name, k > 0 ? "%s %d" : "%s", lanes[row]->word, k + 1);
            add_meta(text, rank, thread_id(row, k), "thread", name, row * LAYERS + k);
        }
    }
}

/* The arguments of a span in the file: bytes, and the number of a call. */
static void add_args(struct text *text, const struct trace_span *span)
{
    bool numbered = span->number > 0, collective = span->lane->collective;
    bool counted = span->bytes > 0 || (numbered && collective);
    if (!numbered && !counted)
        return;
    text_add(text, ",\"args\":{");
    if (numbered)
        text_printf(text, "\"%s\":%lld%s", collective ? "seq" : "number", (long long)span->number,
                    counted ? "," : "");
    if (counted)
        text_printf(text, "\"bytes\":%lld", (long long)span->bytes);
    text_add(text, "}");
}

static void add_event(struct text *text, int rank, const struct drawn *drawn, double origin)
{
    const struct event *event = drawn->event;
    const struct trace_span *span = &event->span;
    char name[256];
    int bytes = snprintf(name, sizeof name, "%s%s%s", span->name, span->object ? " " : "",
                         span->object ? span->object : "");
    text_add(text, "{\"name\":");
    text_json_string(text, name, bytes < (int)sizeof name ? (size_t)bytes : sizeof name - 1);
    text_printf(text, ",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d",
                span->category ? span->category : span->lane->word, 1e6 * (event->start - origin),
                1e6 * (event->end - event->start), rank, thread_id(span->lane->row, drawn->layer));
    add_args(text, span);
    text_add(text, "},\n");
}

static void add_all(struct text *text, const struct trace *trace, struct drawn *drawn, int rank,
                    const char *process)
{
    struct layer layers[TRACE_ROWS][LAYERS] = {0};
    const struct trace_lane *lanes[TRACE_ROWS] = {0};
    size_t count = place(trace, drawn, layers);
    find_lanes(drawn, count, lanes);
    text_add(text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    add_meta(text, rank, 0, "process", process, rank);
    add_names(text, lanes, layers, rank);
    for (size_t i = 0; i < count; i++)
        add_event(text, rank, &drawn[i], trace->origin);
    if (text->status == STATUS_OK) /* drop the last comma */
        text->data[text->bytes - 2] = '\n';
    if (text->status == STATUS_OK)
        text->bytes--;
    text_add(text, "]}\n");
}

enum status trace_write(const struct trace *trace, int rank, const char *process, const char *path)
{
    struct text text;
    struct drawn *drawn;
    TRY(mem_alloc_array(trace->env, MEM_OTHER, "trace", (size_t)trace->room, sizeof *drawn,
                        &drawn));
    text_init(&text, trace->env);
    add_all(&text, trace, drawn, rank, process);
    mem_free(trace->env, drawn);
    enum status st = file_write_text(trace->env, path, &text);
    text_free(&text);
    return st;
}
