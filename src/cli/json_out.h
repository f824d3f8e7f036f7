/* json_out -- one JSON object for --json, built key by key. Every object of the command begins
 * with "schema": 1.
 *
 * Keys come in the order of the calls; inside arrays `key` is NULL. Nothing is printed before
 * json_print.
 */
#ifndef CLI_JSON_OUT_H
#define CLI_JSON_OUT_H
#include <stdbool.h>
#include <stdint.h>
#include "base/text.h"
#include "cli/console.h"
#include "device/device.h"

struct json_out {
    struct text text;
    bool comma; /* something stands before in the object or array that is open */
};

void json_out_begin(struct json_out *json, struct env *env);              /* {"schema": 1 */
void json_out_open(struct json_out *json, const char *key, char bracket); /* '{' or '[' */
void json_out_close(struct json_out *json, char bracket);                 /* '}' or ']' */
void json_out_string(struct json_out *json, const char *key, const char *value);
/* A text that may hold NUL bytes: what a model writes, what a token is. */
void json_out_bytes(struct json_out *json, const char *key, const char *value, size_t bytes);
void json_out_int(struct json_out *json, const char *key, int64_t value);
void json_out_real(struct json_out *json, const char *key,
                   double value); /* null when it is not finite */
/* clock_mhz, power_w and temperature_c, those that are known. */
void json_out_gauges(struct json_out *json, const struct device_gauges *gauges);
void json_out_bool(struct json_out *json, const char *key, bool value);
/* Close the object and print it as one line to stdout; the second frees it as well, after the
 * first json_out_restart begins another object in the same room. */
enum status json_out_flush(struct json_out *json, struct console *console);
enum status json_out_print(struct json_out *json, struct console *console);
void json_out_restart(struct json_out *json);

#endif
