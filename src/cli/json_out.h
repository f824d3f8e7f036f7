/* json_out -- one JSON object for --json, built key by key. Every object begins with "schema": 1.
 *
 * Keys appear in the order of the calls; inside arrays `key` is NULL. Nothing is printed before
 * json_out_flush or json_out_print.
 */
#ifndef CLI_JSON_OUT_H
#define CLI_JSON_OUT_H
#include <stdbool.h>
#include <stdint.h>
#include "base/text.h"
#include "cli/console.h"
#include "comm/traffic.h"
#include "device/device.h"

struct json_out {
    struct text text;
    bool comma; /* the open object or array has a value already */
};

void json_out_begin(struct json_out *json, struct env *env);              /* {"schema": 1 */
void json_out_open(struct json_out *json, const char *key, char bracket); /* '{' or '[' */
void json_out_close(struct json_out *json, char bracket);                 /* '}' or ']' */
void json_out_string(struct json_out *json, const char *key, const char *value);
/* Text that may contain NUL bytes: generated text, a token. */
void json_out_bytes(struct json_out *json, const char *key, const char *value, size_t bytes);
void json_out_int(struct json_out *json, const char *key, int64_t value);
void json_out_real(struct json_out *json, const char *key,
                   double value); /* null when it is not finite */
/* An object with the bytes of each category. */
void json_out_mem(struct json_out *json, const char *key, const size_t bytes[MEM_CATEGORY_COUNT]);
void json_out_moved(struct json_out *json, const char *key, const int64_t moved[TRAFFIC_WAY_COUNT]);
/* Those of clock_mhz, power_w and temperature_c that are known. */
void json_out_gauges(struct json_out *json, const struct device_gauges *gauges);
void json_out_bool(struct json_out *json, const char *key, bool value);
/* Close the object and print it as one line to stdout. After json_out_flush, json_out_restart
 * begins another object in the same memory; json_out_print frees it. */
enum status json_out_flush(struct json_out *json, struct console *console);
enum status json_out_print(struct json_out *json, struct console *console);
void json_out_restart(struct json_out *json);

#endif
