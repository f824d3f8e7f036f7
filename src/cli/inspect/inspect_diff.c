/* inspect_diff -- differences between two models or checkpoints. The lines list the tensors that
 * differ; the JSON object lists all tensors. */
#include <inttypes.h>
#include "cli/inspect/inspect.h"
#include "train/models/model_diff.h"

static void print_line(struct inspection *in, const struct diff_tensor *t)
{
    char a[160], b[160];
    struct text text;
    if (diff_tensor_equal(t))
        return;
    text_init(&text, in->cli->env);
    if (!t->a || !t->b)
        text_printf(&text, "; only in %s", t->a ? "the first" : "the second");
    if (t->a && t->b && !t->same_type)
        text_printf(&text, "; %s, %s", safetensors_type_word(t->a->type),
                    safetensors_type_word(t->b->type));
    if (t->a && t->b && !t->same_shape) {
        inspect_shape(t->a, a, sizeof a);
        inspect_shape(t->b, b, sizeof b);
        text_printf(&text, "; %s, %s", a, b);
    }
    if (t->compared)
        text_printf(&text, "; %" PRId64 " of %" PRId64 " elements, largest %.3g, rms %.3g relative",
                    t->differing, t->a->count, t->largest, t->relative_rms);
    if (t->compared && t->first >= 0)
        text_printf(&text, ", first at %" PRId64 " (%.9g, %.9g)", t->first, t->a_first, t->b_first);
    if (text.status == STATUS_OK)
        console_line(in->cli->console, "  %-8s  %s: %s", t->part, t->a ? t->a->name : t->b->name,
                     text_string(&text) + 2);
    text_free(&text);
}

static void add_side(struct json_out *json, const char *key, const struct safetensor *t)
{
    json_out_open(json, key, '{');
    if (t)
        inspect_shape_json(json, t);
    json_out_close(json, '}');
}

static void print_json(struct json_out *json, const struct diff_tensor *t)
{
    json_out_open(json, NULL, '{');
    json_out_string(json, "part", t->part);
    json_out_string(json, "name", t->a ? t->a->name : t->b->name);
    json_out_bool(json, "equal", diff_tensor_equal(t));
    add_side(json, "a", t->a);
    add_side(json, "b", t->b);
    if (t->compared) {
        json_out_int(json, "elements", t->a->count);
        json_out_int(json, "differing", t->differing);
        json_out_int(json, "first", t->first);
        json_out_real(json, "largest", t->largest);
        json_out_real(json, "relative_rms", t->relative_rms);
    }
    json_out_close(json, '}');
}

static void show(void *user, const struct diff_tensor *tensor)
{
    struct inspection *in = user;
    if (in->json)
        print_json(in->json, tensor);
    else
        print_line(in, tensor);
}

enum status inspect_diff(struct inspection *in, const char *other)
{
    struct diff_totals totals;
    if (in->json)
        json_out_string(in->json, "other", other);
    inspect_open_list(in, "list");
    enum status st = model_diff(in->cli->env, in->path, other, show, in, &totals);
    inspect_close_list(in);
    TRY(st);
    inspect_int(in, "tensors", totals.tensors);
    inspect_int(in, "equal", totals.equal);
    inspect_int(in, "differing", totals.differing);
    inspect_int(in, "only_first", totals.only_a);
    inspect_int(in, "only_second", totals.only_b);
    inspect_real(in, "largest", totals.largest);
    if (totals.equal == totals.tensors)
        return STATUS_OK;
    in->differs = true;
    return FAIL(in->cli->env, FORMAT, "'%s' and '%s' differ in %" PRId64 " of %" PRId64 " tensors",
                in->path, other, totals.tensors - totals.equal, totals.tensors);
}
