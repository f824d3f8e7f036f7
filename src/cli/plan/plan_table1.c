/* plan_table1 -- Table 1 of the ZeRO paper (Rajbhandari et al. 2020): bytes of model state per
 * device in 16-bit mixed precision, for three models, by the formula that plans are compared with.
 * The paper rounds some figures and truncates others; these are exact.
 */
#include <stdio.h>
#include "cli/json_out.h"
#include "cli/plan/plan_view.h"

static const struct {
    const char *name;
    double parameters;
} models[] = {{"7.5B", 7.5e9}, {"128B", 128e9}, {"1T", 1e12}};
static const int devices[] = {1, 4, 16, 64, 256, 1024};
static const char *const cuts[] = {"P_os", "P_os+g", "P_os+g+p"}; /* stages 1, 2, 3 */
enum {
    MODELS = sizeof models / sizeof *models,
    DEVICES = sizeof devices / sizeof *devices,
    CUTS = sizeof cuts / sizeof *cuts
};

static double figure(int model, int device, int cut)
{
    struct roster roster = roster_of(0, devices[device], 0);
    return formula_state(&roster, cut + 1, models[model].parameters, state_mixed);
}

static enum status print_json(struct cli *cli)
{
    struct json_out json;
    json_out_begin(&json, cli->env);
    json_out_open(&json, "table1", '[');
    for (int m = 0; m < MODELS; m++)
        for (int d = 0; d < DEVICES; d++) {
            json_out_open(&json, NULL, '{');
            json_out_string(&json, "model", models[m].name);
            json_out_int(&json, "ranks", devices[d]);
            for (int c = 0; c < CUTS; c++)
                json_out_real(&json, cuts[c], figure(m, d, c));
            json_out_close(&json, '}');
        }
    json_out_close(&json, ']');
    return json_out_print(&json, cli->console);
}

static void write_lines(struct text *text)
{
    char word[32];
    text_add(text, "model state per device, 16-bit mixed precision with Adam (2 + 2 + 12 bytes per "
                   "parameter), in 10^9 bytes;\n"
                   "P_os is ZeRO stage 1, P_os+g stage 2, P_os+g+p stage 3\n");
    for (int m = 0; m < MODELS; m++) {
        snprintf(word, sizeof word, "%s on", models[m].name);
        text_printf(text, "\n%-8s", word);
        for (int c = 0; c < CUTS; c++)
            text_printf(text, " %15s", cuts[c]);
        text_add(text, "\n");
        for (int d = 0; d < DEVICES; d++) {
            text_printf(text, "%6d  ", devices[d]);
            for (int c = 0; c < CUTS; c++)
                text_printf(text, " %15.12g", figure(m, d, c) / 1e9);
            text_add(text, "\n");
        }
    }
}

enum status plan_view_table1(struct cli *cli, bool json)
{
    struct text text;
    if (json)
        return print_json(cli);
    text_init(&text, cli->env);
    write_lines(&text);
    enum status st = text.status;
    if (st == STATUS_OK)
        console_write(cli->console, text_string(&text), text.bytes);
    text_free(&text);
    return st;
}
