/* inspect_print -- values of an inspection, as lines or as fields of one JSON object. */
#include <inttypes.h>
#include <stdio.h>
#include "cli/inspect/inspect.h"

static void line(struct inspection *in, const char *name, const char *value)
{
    struct console *console = in->cli->console;
    if (!in->headed)
        console_line(console, "%s%s%s", console_style(console, STYLE_BOLD), in->path,
                     console_style(console, STYLE_PLAIN));
    in->headed = true;
    console_line(console, "  %s%-20s%s %s", console_style(console, STYLE_DIM), name,
                 console_style(console, STYLE_PLAIN), value);
}

void inspect_string(struct inspection *in, const char *name, const char *value)
{
    if (in->json)
        json_out_string(in->json, name, value);
    else
        line(in, name, value);
}

void inspect_int(struct inspection *in, const char *name, int64_t value)
{
    char number[64], human[32];
    if (in->json) {
        json_out_int(in->json, name, value);
        return;
    }
    snprintf(number, sizeof number, value < 10000 ? "%lld" : "%lld (%s)", (long long)value,
             text_human_count(human, (double)value));
    line(in, name, number);
}

void inspect_bytes(struct inspection *in, const char *name, size_t bytes)
{
    char human[32];
    if (in->json)
        json_out_int(in->json, name, (int64_t)bytes);
    else
        line(in, name, text_human_bytes(human, (double)bytes));
}

void inspect_real(struct inspection *in, const char *name, double value)
{
    char number[32];
    if (in->json) {
        json_out_real(in->json, name, value);
        return;
    }
    snprintf(number, sizeof number, "%.5g", value);
    line(in, name, number);
}

void inspect_open_list(struct inspection *in, const char *name)
{
    if (in->json)
        json_out_open(in->json, name, '[');
}

void inspect_close_list(struct inspection *in)
{
    if (in->json)
        json_out_close(in->json, ']');
}

void inspect_shape(const struct safetensor *t, char *out, size_t bytes)
{
    size_t used = (size_t)snprintf(out, bytes, "[");
    for (int i = 0; i < t->rank && used < bytes; i++)
        used +=
            (size_t)snprintf(out + used, bytes - used, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    if (used < bytes)
        snprintf(out + used, bytes - used, "]");
}

void inspect_shape_json(struct json_out *json, const struct safetensor *t)
{
    json_out_string(json, "dtype", safetensors_type_word(t->type));
    json_out_open(json, "shape", '[');
    for (int i = 0; i < t->rank; i++)
        json_out_int(json, NULL, t->shape[i]);
    json_out_close(json, ']');
}
