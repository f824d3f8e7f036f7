/* config_lines -- flattens a configuration to lines, and compares two of them. */
#include "train/checkpoint/config_lines.h"
#include <string.h>

enum { MOST_SHOWN = 8 };

/* --- lines ---------------------------------------------------------------------------------- */

struct lines {
    const char *section; /* its line of the YAML */
    struct text line;    /* the line being assembled */
    bool in_list;        /* the line has items of a list */
};

/* Finish the current line and append it to `out`. */
static void end_line(struct lines *lines, config_wanted_fn *wanted, struct text *out)
{
    if (lines->in_list)
        text_add(&lines->line, "}]");
    if (lines->line.bytes > 0 && (!wanted || wanted(text_string(&lines->line))))
        text_printf(out, "%s\n", text_string(&lines->line));
    lines->in_list = false;
    text_clear(&lines->line);
}

/* "- match: x" begins an item of a list, "lr_mul: 2" continues it. */
static void add_field(struct lines *lines, const char *field, int bytes)
{
    bool begins = strncmp(field, "- ", 2) == 0;
    int skip = begins ? 2 : 0;
    text_printf(&lines->line, "%s%.*s",
                !begins          ? ", "
                : lines->in_list ? "}, {"
                                 : " [{",
                bytes - skip, field + skip);
    lines->in_list = true;
}

void config_lines(const char *yaml, config_wanted_fn *wanted, struct text *out)
{
    struct lines lines = {.section = ""};
    text_init(&lines.line, out->env);
    for (const char *s = yaml; *s;) {
        int bytes = (int)strcspn(s, "\n"), indent = (int)strspn(s, " ");
        if (indent > 2) {
            add_field(&lines, s + indent, bytes - indent);
        } else {
            end_line(&lines, wanted, out);
            if (indent == 0)
                lines.section = s;
            else
                text_printf(&lines.line, "%.*s.%.*s", (int)strcspn(lines.section, ":\n"),
                            lines.section, bytes - indent, s + indent);
        }
        s += bytes + (s[bytes] == '\n');
    }
    end_line(&lines, wanted, out);
    if (lines.line.status != STATUS_OK && out->status == STATUS_OK)
        out->status = lines.line.status;
    text_free(&lines.line);
}

/* --- what a change means -------------------------------------------------------------------- */

static bool starts_with(const char *line, const char *const *starts)
{
    for (; *starts; starts++)
        if (strncmp(line, *starts, strlen(*starts)) == 0)
            return true;
    return false;
}

enum config_weight config_weight_of(const char *line)
{
    static const char *const bits[] = {
        "zero.accumulate:", "run.deterministic:", "parallel.tp:", "parallel.sequence:", NULL};
    static const char *const free_keys[] = {"model.preset:",
                                            "run.",
                                            "comm.",
                                            "zero.",
                                            "offload.",
                                            "parallel.",
                                            "checkpoint.",
                                            "engine.",
                                            "data.cache:",
                                            "train.log_every:",
                                            "train.noise_scale:",
                                            "train.max_time:",
                                            "train.stop_at:",
                                            "train.branch:",
                                            "train.max_skips:",
                                            "train.eval_",
                                            "train.sample_",
                                            NULL};
    static const char *const shapes[] = {"model.arch:",
                                         "model.layers:",
                                         "model.width:",
                                         "model.heads:",
                                         "model.kv_heads:",
                                         "model.head_width:",
                                         "model.ff:",
                                         "model.context:",
                                         "model.vocab:",
                                         "model.tied:",
                                         "sars.rope:",
                                         "train.freeze:",
                                         NULL};
    if (starts_with(line, bits))
        return CONFIG_BITS;
    if (strncmp(line, "train.eval_batches:", 19) == 0)
        return CONFIG_EVAL;
    if (starts_with(line, free_keys))
        return CONFIG_FREE;
    if (strncmp(line, "data.", 5) == 0)
        return CONFIG_DATA;
    return starts_with(line, shapes) ? CONFIG_SHAPES : CONFIG_BITS;
}

/* The rest of the line in `lines` that has the same key as `line`; NULL if there is none. */
static const char *find_value(const char *lines, const char *line, size_t key_bytes)
{
    while (*lines) {
        if (strncmp(lines, line, key_bytes) == 0)
            return lines + key_bytes;
        lines += strcspn(lines, "\n");
        lines += *lines == '\n';
    }
    return NULL;
}

static int value_bytes(const char *value)
{
    return (int)strcspn(value, "\n");
}

static void add_changes(const char *there, const char *here, enum config_weight weight,
                        struct text *out)
{
    int shown = 0;
    for (const char *line = there; *line; line += value_bytes(line), line += *line == '\n') {
        size_t key = strcspn(line, ":\n");
        const char *old = line + key, *new = find_value(here, line, key);
        if (line[key] != ':' || !new || *new != ':' || config_weight_of(line) != weight)
            continue;
        old += strspn(old, ": ");
        new += strspn(new, ": ");
        if (value_bytes(old) == value_bytes(new) &&
            strncmp(old, new, (size_t)value_bytes(old)) == 0)
            continue;
        if (shown++ < MOST_SHOWN)
            text_printf(out, "%s%.*s: %.*s -> %.*s", out->bytes ? "; " : "", (int)key, line,
                        value_bytes(old), old, value_bytes(new), new);
    }
    if (shown > MOST_SHOWN)
        text_printf(out, "; and %d more", shown - MOST_SHOWN);
}

void config_changes(const char *there, const char *here, enum config_weight weight,
                    struct text *out)
{
    struct text old, new;
    text_init(&old, out->env);
    text_init(&new, out->env);
    config_lines(there, NULL, &old);
    config_lines(here, NULL, &new);
    add_changes(text_string(&old), text_string(&new), weight, out);
    text_free(&new);
    text_free(&old);
}
