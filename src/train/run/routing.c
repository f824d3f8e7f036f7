#include "train/run/routing.h"
#include <math.h>

enum { NUMBER_BYTES = 32, WORD_BYTES = 16 }; /* of a number and a key in JSON, at most */

struct routing_report {
    struct env *env; /* borrowed */
    int64_t layers, width;
    int gate; /* enum sars_gate */
    double meta_weight;
    double (*figures)[ROUTING_FIGURES]; /* (layers + 1) the mean, then each layer */
};

static const char *const words[ROUTING_FIGURES] = {
    [ROUTING_ACTIVE] = "active",     [ROUTING_DEAD] = "dead",   [ROUTING_ENTROPY] = "entropy",
    [ROUTING_GOODNESS] = "goodness", [ROUTING_GATED] = "gated",
};

const char *routing_word(enum routing_figure figure)
{
    return words[figure];
}

enum status routing_create(struct env *env, const struct model_config *model,
                           struct routing_report **routing)
{
    struct routing_report *r;
    enum status st;
    *routing = NULL;
    if (model->arch != MODEL_SARS)
        return STATUS_OK;
    TRY(mem_alloc(env, MEM_OTHER, "routing", sizeof *r, &r));
    *r = (struct routing_report){.env = env,
                                 .layers = model->layers,
                                 .width = model->width,
                                 .gate = model->sars.gate,
                                 .meta_weight = model->sars.meta_weight};
    TRY_OR(undo_self, mem_alloc_array(env, MEM_OTHER, "routing", (size_t)model->layers + 1,
                                      sizeof *r->figures, &r->figures));
    *routing = r;
    return STATUS_OK;
undo_self:
    mem_free(env, r);
    return st;
}

void routing_destroy(struct routing_report *routing)
{
    if (routing == NULL)
        return;
    mem_free(routing->env, routing->figures);
    mem_free(routing->env, routing);
}

/* --- reading -------------------------------------------------------------------------------- */

/* `s` is the statistic of one block. */
static void read_layer(const struct routing_report *r, const float *s, double tokens,
                       double *figures)
{
    const float *goodness = s + sars_statistic_at(SARS_GOODNESS, r->width);
    const float *active = s + sars_statistic_at(SARS_ACTIVE, r->width);
    const float *entropy = s + sars_statistic_at(SARS_ENTROPY, r->width);
    double sums[ROUTING_FIGURES] = {0};
    int64_t rows = SARS_KINDS * r->width;
    for (int64_t j = 0; j < rows; j++) {
        sums[ROUTING_GOODNESS] += (double)goodness[j];
        sums[ROUTING_ACTIVE] += (double)active[j];
        sums[ROUTING_DEAD] += active[j] == 0;
        sums[ROUTING_GATED] += !(goodness[j] > 0);
    }
    for (int kind = 0; kind < SARS_KINDS; kind++)
        sums[ROUTING_ENTROPY] += (double)entropy[kind];
    figures[ROUTING_ACTIVE] = sums[ROUTING_ACTIVE] / (tokens * (double)rows);
    figures[ROUTING_DEAD] = sums[ROUTING_DEAD] / (double)rows;
    figures[ROUTING_ENTROPY] = sums[ROUTING_ENTROPY] / (tokens * SARS_KINDS);
    figures[ROUTING_GOODNESS] = sums[ROUTING_GOODNESS] / (tokens * (double)rows);
    figures[ROUTING_GATED] = r->gate == SARS_GATE_GLOBAL ? sums[ROUTING_GATED] / (double)rows
                             : r->gate == SARS_GATE_OFF  ? 0
                                                         : NAN;
}

void routing_read(struct routing_report *r, const float *statistic, int64_t tokens)
{
    int64_t block = sars_statistic_at(SARS_STATISTICS, r->width);
    double *mean = r->figures[0];
    for (int f = 0; f < ROUTING_FIGURES; f++)
        mean[f] = 0;
    for (int64_t layer = 0; layer < r->layers; layer++) {
        double *figures = r->figures[layer + 1];
        read_layer(r, statistic + layer * block, (double)tokens, figures);
        for (int f = 0; f < ROUTING_FIGURES; f++)
            mean[f] += figures[f] / (double)r->layers;
    }
}

int64_t routing_layers(const struct routing_report *routing)
{
    return routing->layers;
}

double routing_figure(const struct routing_report *routing, int64_t layer,
                      enum routing_figure figure)
{
    CHECK(layer >= ROUTING_MEAN && layer < routing->layers);
    return routing->figures[layer + 1][figure];
}

double routing_meta_loss(const struct routing_report *routing)
{
    return routing->meta_weight * routing_figure(routing, ROUTING_MEAN, ROUTING_ENTROPY);
}

/* --- printing ------------------------------------------------------------------------------- */

static void add_real(struct text *text, const char *before, const char *key, double value)
{
    text_printf(text, "%s\"%s\":", before, key);
    text_json_real(text, value);
}

void routing_print(const struct routing_report *r, double meta_norm, struct text *text)
{
    add_real(text, "{", "meta_loss", routing_meta_loss(r));
    add_real(text, ",", "meta_norm", meta_norm);
    for (int f = 0; f < ROUTING_FIGURES; f++)
        add_real(text, ",", words[f], r->figures[0][f]);
    text_add(text, ",\"layers\":");
    for (int f = 0; f < ROUTING_FIGURES; f++) {
        text_printf(text, "%s\"%s\":[", f == 0 ? "{" : ",", words[f]);
        for (int64_t layer = 0; layer < r->layers; layer++) {
            text_add(text, layer > 0 ? "," : "");
            text_json_real(text, r->figures[layer + 1][f]);
        }
        text_add(text, "]");
    }
    text_add(text, "}}");
}

size_t routing_print_bytes(const struct routing_report *r)
{
    size_t numbers = (size_t)(r->layers + 1) * ROUTING_FIGURES + 2;
    return numbers * NUMBER_BYTES + (2 * ROUTING_FIGURES + 3) * WORD_BYTES;
}
