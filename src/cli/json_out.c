#include "cli/json_out.h"
#include <inttypes.h>
#include <string.h>

static void begin_value(struct json_out *json, const char *key)
{
    if (json->comma)
        text_add(&json->text, ", ");
    json->comma = true;
    if (key) {
        text_json_string(&json->text, key, strlen(key));
        text_add(&json->text, ": ");
    }
}

void json_out_begin(struct json_out *json, struct env *env)
{
    *json = (struct json_out){0};
    text_init(&json->text, env);
    json_out_restart(json);
}

void json_out_open(struct json_out *json, const char *key, char bracket)
{
    begin_value(json, key);
    text_add_bytes(&json->text, &bracket, 1);
    json->comma = false;
}

void json_out_close(struct json_out *json, char bracket)
{
    text_add_bytes(&json->text, &bracket, 1);
    json->comma = true;
}

void json_out_string(struct json_out *json, const char *key, const char *value)
{
    json_out_bytes(json, key, value, strlen(value));
}

void json_out_bytes(struct json_out *json, const char *key, const char *value, size_t bytes)
{
    begin_value(json, key);
    text_json_string(&json->text, value, bytes);
}

void json_out_int(struct json_out *json, const char *key, int64_t value)
{
    begin_value(json, key);
    text_printf(&json->text, "%" PRId64, value);
}

void json_out_real(struct json_out *json, const char *key, double value)
{
    begin_value(json, key);
    text_json_real(&json->text, value);
}

void json_out_mem(struct json_out *json, const char *key, const size_t bytes[MEM_CATEGORY_COUNT])
{
    json_out_open(json, key, '{');
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        json_out_int(json, mem_category_word((enum mem_category)c), (int64_t)bytes[c]);
    json_out_close(json, '}');
}

void json_out_moved(struct json_out *json, const char *key, const int64_t moved[TRAFFIC_WAY_COUNT])
{
    json_out_open(json, key, '{');
    for (int way = 0; way < TRAFFIC_WAY_COUNT; way++)
        json_out_int(json, traffic_way_word((enum traffic_way)way), moved[way]);
    json_out_close(json, '}');
}

static void known(struct json_out *json, const char *key, double value)
{
    if (value > 0)
        json_out_real(json, key, value);
}

void json_out_gauges(struct json_out *json, const struct device_gauges *gauges)
{
    known(json, "clock_mhz", gauges->clock_mhz);
    known(json, "power_w", gauges->watts);
    known(json, "temperature_c", gauges->celsius);
}

void json_out_bool(struct json_out *json, const char *key, bool value)
{
    begin_value(json, key);
    text_add(&json->text, value ? "true" : "false");
}

void json_out_restart(struct json_out *json)
{
    text_clear(&json->text);
    json->comma = false;
    json_out_open(json, NULL, '{');
    json_out_int(json, "schema", 1);
}

enum status json_out_flush(struct json_out *json, struct console *console)
{
    json_out_close(json, '}');
    if (json->text.status == STATUS_OK)
        console_line(console, "%s", text_string(&json->text));
    return json->text.status;
}

enum status json_out_print(struct json_out *json, struct console *console)
{
    enum status st = json_out_flush(json, console);
    text_free(&json->text);
    return st;
}
