/* run_trace -- a step as the ranks traced it: {"step":N,"start":US,"end":US,"names":[...],
 * "ranks":[{"rank":R,"lanes":["compute", ...],"spans":[lane, start, length, name, bytes, ...]}]}.
 * Times are microseconds; those of spans count from "start". trace_write has one event per line. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include "base/file.h"
#include "base/json_doc.h"
#include "cli/page/run_watch.h"
#include "train/run/records.h"

enum { LANES = 64, NAMES = 4096, FILE_BYTES = 64 << 20 };
static const struct json_rules RULES = {.values = 64, .lists = 8};

struct printer {
    struct env *env;
    struct text *text;
    double start, end; /* of the step, microseconds; start NaN = not found yet */
    int64_t number;    /* of the step */
    struct text lanes[LANES], names;
    const char *comma;
    int64_t left; /* spans that there is room for, of this rank */
    int name_count;
};

typedef void event_fn(struct printer *printer, const json_t *event);

/* Call `take` for each event of a file. */
static void read_events(struct printer *printer, const char *path, event_fn *take)
{
    struct file_map map;
    struct line line;
    size_t at = 0;
    if (!file_exists(path) || file_map_open(printer->env, path, &map) != STATUS_OK)
        return;
    size_t bytes = map.bytes < FILE_BYTES ? map.bytes : FILE_BYTES;
    while (line_next((const char *)map.data, bytes, &at, &line)) {
        struct json_doc doc;
        while (line.bytes > 0 && strchr(",\r ", line.text[line.bytes - 1]))
            line.bytes--;
        if (line.bytes < 2 || line.text[line.bytes - 1] != '}' || line.text[0] != '{')
            continue;
        if (json_doc_open(printer->env, line.text, line.bytes, &RULES, &doc) != STATUS_OK)
            continue;
        if (json_is_object(doc.root))
            take(printer, doc.root);
        json_doc_close(&doc);
    }
    file_map_close(&map);
}

static const char *word(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

static double number(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static void find_step(struct printer *printer, const json_t *event)
{
    if (!isnan(printer->start) || strcmp(word(event, "ph"), "X") != 0 ||
        strcmp(word(event, "name"), "step") != 0)
        return;
    printer->start = number(event, "ts");
    printer->end = printer->start + number(event, "dur");
    printer->number = (int64_t)number(json_object_get(event, "args"), "number");
}

static void take_lane(struct printer *printer, const json_t *event)
{
    double tid = number(event, "tid");
    const char *name = word(json_object_get(event, "args"), "name");
    if (strcmp(word(event, "name"), "thread_name") != 0 || !(tid >= 0 && tid < LANES))
        return;
    text_clear(&printer->lanes[(int)tid]);
    text_json_string(&printer->lanes[(int)tid], name, strlen(name));
}

/* The index of a name in "names". */
static int name_index(struct printer *printer, const char *name)
{
    struct text quoted;
    int index = 0;
    text_init(&quoted, printer->env);
    text_json_string(&quoted, name, strlen(name));
    const char *list = text_string(&printer->names), *end;
    for (; *list; list = end + 1, index++) {
        end = strchr(list, '\n');
        if ((size_t)(end - list) == quoted.bytes && memcmp(list, quoted.data, quoted.bytes) == 0)
            break;
    }
    if (index == printer->name_count && printer->name_count < NAMES) {
        text_printf(&printer->names, "%s\n", text_string(&quoted));
        printer->name_count++;
    }
    text_free(&quoted);
    return index;
}

static void take_span(struct printer *printer, const json_t *event)
{
    double ts = number(event, "ts"), dur = number(event, "dur"), tid = number(event, "tid");
    take_lane(printer, event);
    if (strcmp(word(event, "ph"), "X") != 0 || strcmp(word(event, "name"), "step") == 0 ||
        !(tid >= 0 && tid < LANES) || !(ts < printer->end && ts + dur > printer->start) ||
        printer->left <= 0)
        return;
    printer->left--;
    text_printf(printer->text, "%s%d,%.0f,%.0f,%d,%.0f", printer->comma, (int)tid,
                ts - printer->start, dur, name_index(printer, word(event, "name")),
                number(json_object_get(event, "args"), "bytes"));
    printer->comma = ",";
}

static void print_rank(struct printer *printer, const char *path, int rank, int64_t most)
{
    for (int i = 0; i < LANES; i++)
        text_clear(&printer->lanes[i]);
    printer->left = most;
    printer->comma = "";
    text_printf(printer->text, "%s{\"rank\":%d,\"spans\":[", rank > 0 ? "," : "", rank);
    read_events(printer, path, take_span);
    text_printf(printer->text, "],\"cut\":%s,\"lanes\":[", printer->left <= 0 ? "true" : "false");
    for (int i = 0; i < LANES; i++)
        text_printf(printer->text, "%s%s", i ? "," : "",
                    printer->lanes[i].bytes ? text_string(&printer->lanes[i]) : "null");
    text_add(printer->text, "]}");
}

static void print_names(struct printer *printer)
{
    for (char *end = printer->names.data; end && (end = strchr(end, '\n'));)
        *end = end[1] ? ',' : 0;
    text_printf(printer->text, ",\"names\":[%s]", text_string(&printer->names));
}

void run_trace_print(struct env *env, const char *folder, int ranks, int64_t most,
                     struct text *text)
{
    struct printer printer = {.env = env, .text = text, .start = NAN};
    char path[4096];
    int shown = ranks < RUN_TRACED ? ranks : RUN_TRACED;
    snprintf(path, sizeof path, "%s/trace-rank-0.json", folder);
    read_events(&printer, path, find_step);
    if (isnan(printer.start)) {
        text_add(text, "null");
        return;
    }
    text_init(&printer.names, env);
    for (int i = 0; i < LANES; i++)
        text_init(&printer.lanes[i], env);
    text_printf(text, "{\"step\":%" PRId64 ",\"length\":%.0f,\"ranks\":[", printer.number,
                printer.end - printer.start);
    for (int rank = 0; rank < shown; rank++) {
        snprintf(path, sizeof path, "%s/trace-rank-%d.json", folder, rank);
        print_rank(&printer, path, rank, most / shown);
    }
    text_add(text, "]");
    print_names(&printer);
    text_add(text, "}");
    text_free(&printer.names);
    for (int i = 0; i < LANES; i++)
        text_free(&printer.lanes[i]);
}
