/* model -- the graph of a GPT-2, a Llama (or relative) or a SARS model: tensors, params, pieces and
 * units, in the order of the stream.
 *
 *     piece      params                                       used by
 *     wte        the embedding matrix                         embedding; the head too when tied
 *     wpe        learned positions (GPT-2)                    embedding
 *     block N    norms, attention, MLP                        block N
 *     head       the last norm; its own matrix if not tied    head
 *
 * A block of SARS has three pieces, so that each pass gathers only what it reads: the norm and the
 * routed projections; their prototypes, which the forward pass alone reads; and the maps of the
 * prototype chain, which are never updated.
 *
 * Tables are sized for the maximum that a layer can need and filled by appending. Tensors have the
 * names, shapes and orientation of Hugging Face files, even if this rank holds only a part of each:
 * every tensor is added with its split (model_part.c). Matrices that write into the stream are
 * initialized smaller by sqrt(2 layers), so that the stream's variance does not grow with depth.
 */
#include "model/model.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "model/model_impl.h"
#include "unit/unit_freeze.h"

/* Upper limits for one layer, and for embedding and head together. */
enum { LAYER_TENSORS = 30, LAYER_PARAMS = 16, END_TENSORS = 8, END_PARAMS = 8, END_UNITS = 2 };

struct model {
    struct device *device; /* borrowed */
    struct model_config config;
    struct model_part part;
    struct tp_group tp_group;
    struct unit_graph graph;
    struct unit_tensor *tensors;
    struct unit_param *params;
    struct unit_piece *pieces;
    struct unit *units;
    float *rope[ROPE_TABLES]; /* device memory; NULL: the model has none */
    struct embedding_unit embedding;
    struct block blocks[BLOCK_VARIANTS];
    struct unit_type block_type, head_type;
    struct sars_block sars_block;
    struct head_unit head;
};

/* --- appending to the tables ---------------------------------------------------------------- */
static void add_piece(struct model *m, const char *name)
{
    struct unit_graph *g = &m->graph;
    struct unit_piece *piece = &m->pieces[g->piece_count++];
    snprintf(piece->name, sizeof piece->name, "%s", name);
    piece->first_param = g->param_count;
}

static struct unit *add_unit(struct model *m, const char *name, const struct unit_type *type,
                             const void *self)
{
    struct unit *unit = &m->units[m->graph.unit_count++];
    snprintf(unit->name, sizeof unit->name, "%s", name);
    unit->type = type;
    unit->self = self;
    return unit;
}

static void use(struct unit *unit, int param)
{
    CHECK_LT(unit->use_count, UNIT_MAX_USES);
    unit->uses[unit->use_count++] = param;
}

/* Add a param, still without tensors, to the last piece; `unit` uses it. */
static int add_param(struct model *m, struct unit *unit)
{
    struct unit_graph *g = &m->graph;
    int index = g->param_count++;
    m->params[index] = (struct unit_param){
        .first_tensor = g->tensor_count, .tensor_count = 0, .piece = g->piece_count - 1};
    m->pieces[g->piece_count - 1].param_count++;
    use(unit, index);
    return index;
}

/* A tensor "<prefix><name>" of the last param. columns 0: a vector of `rows` values. */
static void add_tensor(struct model *m, const char *prefix, const char *name, int64_t rows,
                       int64_t columns, enum unit_init init, double scale, struct unit_split split)
{
    struct unit_graph *g = &m->graph;
    struct unit_tensor *t = &m->tensors[g->tensor_count++];
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
    t->dims = columns ? 2 : 1;
    t->shape[0] = rows;
    t->shape[1] = columns;
    t->init = init;
    t->init_scale = scale;
    t->decay = columns != 0;
    t->matrices = columns != 0;
    t->split = split;
    m->params[g->param_count - 1].tensor_count++;
}

/* Params of one tensor. */
static void add_vector(struct model *m, struct unit *unit, const char *prefix, const char *name,
                       int64_t count, enum unit_init init, struct unit_split split)
{
    add_param(m, unit);
    add_tensor(m, prefix, name, count, 0, init, 0, split);
}

static int add_matrix(struct model *m, struct unit *unit, const char *prefix, const char *name,
                      int64_t rows, int64_t columns, double deviation, struct unit_split split)
{
    int param = add_param(m, unit);
    add_tensor(m, prefix, name, rows, columns, INIT_NORMAL, deviation, split);
    return param;
}

/* How many matrices of a hidden layer the last tensor holds (unit.h). */
static void set_matrices(struct model *m, int matrices)
{
    m->tensors[m->graph.tensor_count - 1].matrices = matrices;
}

/* --- the architectures ---------------------------------------------------------------------- */

/* Norms work on this rank's rows of the stream. */
static struct unit_split norm_split(const struct model *m)
{
    return part_repeated(&m->tp_group, m->part.sequence);
}

/* Of the matrices that write into the stream. */
static double deep_deviation(const struct model_config *c)
{
    return c->init_std / sqrt(2.0 * (double)c->layers);
}

static void add_gpt2_block(struct model *m, int64_t layer)
{
    const struct model_config *c = &m->config;
    int64_t width = c->width, ff = c->ff;
    double deep = deep_deviation(c);
    char name[32], at[40];
    snprintf(name, sizeof name, "block %lld", (long long)layer);
    snprintf(at, sizeof at, "transformer.h.%lld.", (long long)layer);
    add_piece(m, name);
    struct unit *unit = add_unit(m, name, &m->block_type, &m->blocks[0]);
    /* A matrix is [in][out]: rows are dim 0, columns dim 1. The biases of proj and down are added
     * once to the sum over the ranks, so every rank has their full gradient. */
    struct unit_split norm = norm_split(m), bias = part_repeated(&m->tp_group, false);
    add_vector(m, unit, at, "ln_1.weight", width, INIT_ONE, norm);
    add_vector(m, unit, at, "ln_1.bias", width, INIT_ZERO, norm);
    add_matrix(m, unit, at, "attn.c_attn.weight", width, 3 * width, c->init_std,
               part_of_units(&m->tp_group, 1, 3, c->heads));
    set_matrices(m, 3); /* queries, keys, values */
    add_vector(m, unit, at, "attn.c_attn.bias", 3 * width, INIT_ZERO,
               part_of_units(&m->tp_group, 0, 3, c->heads));
    add_matrix(m, unit, at, "attn.c_proj.weight", width, width, deep,
               part_of_units(&m->tp_group, 0, 1, c->heads));
    add_vector(m, unit, at, "attn.c_proj.bias", width, INIT_ZERO, bias);
    add_vector(m, unit, at, "ln_2.weight", width, INIT_ONE, norm);
    add_vector(m, unit, at, "ln_2.bias", width, INIT_ZERO, norm);
    add_matrix(m, unit, at, "mlp.c_fc.weight", width, ff, c->init_std,
               part_of_units(&m->tp_group, 1, 1, ff));
    add_vector(m, unit, at, "mlp.c_fc.bias", ff, INIT_ZERO, part_of_units(&m->tp_group, 0, 1, ff));
    add_matrix(m, unit, at, "mlp.c_proj.weight", ff, width, deep,
               part_of_units(&m->tp_group, 0, 1, ff));
    add_vector(m, unit, at, "mlp.c_proj.bias", width, INIT_ZERO, bias);
}

static enum unit_init norm_init(const struct model *m)
{
    return model_traits(m->config.arch)->plus_one ? INIT_ZERO : INIT_ONE;
}

static void add_norm(struct model *m, struct unit *unit, const char *at, const char *name)
{
    char full[48];
    snprintf(full, sizeof full, "%s.weight", name);
    add_vector(m, unit, at, full, m->config.width, norm_init(m), norm_split(m));
}

/* Where q, k and v, or gate and up, are one param. */
struct joined {
    const char *name;
    int64_t rows;
    struct unit_split split;
};

static void add_joined(struct model *m, struct unit *unit, const char *at, const char *kind,
                       const struct joined *parts, int count)
{
    const struct model_config *c = &m->config;
    bool bias = strcmp(kind, "bias") == 0;
    add_param(m, unit);
    for (int i = 0; i < count; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s.%s", parts[i].name, kind);
        add_tensor(m, at, name, parts[i].rows, bias ? 0 : c->width, bias ? INIT_ZERO : INIT_NORMAL,
                   bias ? 0 : c->init_std, parts[i].split);
    }
}

/* The same as one tensor of the files. */
static void add_fused(struct model *m, struct unit *unit, const char *at, const char *name,
                      int64_t rows, struct unit_split split)
{
    add_matrix(m, unit, at, name, rows, m->config.width, m->config.init_std, split);
}

static void add_llama_attention(struct model *m, struct unit *unit, const char *at)
{
    const struct model_config *c = &m->config;
    const struct model_traits *traits = model_traits(c->arch);
    int64_t query = c->heads * c->head_width, key = c->kv_heads * c->head_width;
    /* A matrix is [out][in]: columns are dim 0, rows dim 1. */
    struct unit_split heads = part_of_units(&m->tp_group, 0, 1, c->heads);
    struct unit_split kv_heads = part_of_kv_heads(&m->tp_group, 0, c->kv_heads);
    const struct joined qkv[] = {{"self_attn.q_proj", query, heads},
                                 {"self_attn.k_proj", key, kv_heads},
                                 {"self_attn.v_proj", key, kv_heads}};
    if (traits->fused)
        add_fused(m, unit, at, "self_attn.qkv_proj.weight", query + 2 * key,
                  part_of_qkv(&m->tp_group, c->heads, c->kv_heads));
    else
        add_joined(m, unit, at, "weight", qkv, 3);
    if (traits->qkv_bias || c->attention_bias)
        add_joined(m, unit, at, "bias", qkv, 3);
    if (traits->head_norm) { /* one weight for all heads, of which a rank has some */
        struct unit_split norm = part_repeated(&m->tp_group, true);
        add_vector(m, unit, at, "self_attn.q_norm.weight", c->head_width, norm_init(m), norm);
        add_vector(m, unit, at, "self_attn.k_norm.weight", c->head_width, norm_init(m), norm);
    }
    if (traits->whole_norm) {
        add_vector(m, unit, at, "self_attn.q_norm.weight", query, norm_init(m), heads);
        add_vector(m, unit, at, "self_attn.k_norm.weight", key, norm_init(m), kv_heads);
    }
    add_matrix(m, unit, at, "self_attn.o_proj.weight", c->width, query, deep_deviation(c),
               part_of_units(&m->tp_group, 1, 1, c->heads));
    if (c->attention_bias)
        add_vector(m, unit, at, "self_attn.o_proj.bias", c->width, INIT_ZERO,
                   part_repeated(&m->tp_group, false));
}

static void add_llama_mlp(struct model *m, struct unit *unit, const char *at)
{
    const struct model_config *c = &m->config;
    struct unit_split ff = part_of_units(&m->tp_group, 0, 1, c->ff);
    const struct joined up[] = {{"mlp.gate_proj", c->ff, ff}, {"mlp.up_proj", c->ff, ff}};
    if (model_traits(c->arch)->fused)
        add_fused(m, unit, at, "mlp.gate_up_proj.weight", 2 * c->ff,
                  part_of_units(&m->tp_group, 0, 2, c->ff));
    else
        add_joined(m, unit, at, "weight", up, 2);
    if (c->mlp_bias)
        add_joined(m, unit, at, "bias", up, 2);
    add_matrix(m, unit, at, "mlp.down_proj.weight", c->width, c->ff, deep_deviation(c),
               part_of_units(&m->tp_group, 1, 1, c->ff));
    if (c->mlp_bias)
        add_vector(m, unit, at, "mlp.down_proj.bias", c->width, INIT_ZERO,
                   part_repeated(&m->tp_group, false));
}

static void add_llama_block(struct model *m, int64_t layer)
{
    const struct model_config *c = &m->config;
    char name[32], at[40];
    snprintf(name, sizeof name, "block %lld", (long long)layer);
    snprintf(at, sizeof at, "model.layers.%lld.", (long long)layer);
    add_piece(m, name);
    struct unit *unit =
        add_unit(m, name, &m->block_type, &m->blocks[model_block_variant(c, layer)]);
    const struct model_traits *traits = model_traits(c->arch);
    if (!traits->no_pre_norms)
        add_norm(m, unit, at, "input_layernorm");
    add_llama_attention(m, unit, at);
    if (traits->post_norms)
        add_norm(m, unit, at, "post_attention_layernorm");
    if (!traits->no_pre_norms)
        add_norm(m, unit, at,
                 traits->post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm");
    add_llama_mlp(m, unit, at);
    if (traits->post_norms)
        add_norm(m, unit, at, "post_feedforward_layernorm");
}

/* One of the tensors that each routed projection has: a param of four, for q, k, v and o. */
struct sars_tensor {
    const char *name;
    bool matrix;
    enum unit_init init;
    double scale;
    enum unit_phase phase;
    bool gated;
};

static void add_sars_param(struct model *m, struct unit *unit, int64_t layer, struct sars_tensor t)
{
    static const char kinds[SARS_KINDS] = {'q', 'k', 'v', 'o'};
    const struct model_config *c = &m->config;
    int64_t statistic = layer * sars_statistic_at(SARS_STATISTICS, c->width);
    add_param(m, unit);
    for (int kind = 0; kind < SARS_KINDS; kind++) {
        char at[64];
        snprintf(at, sizeof at, "model.layers.%lld.self_attn.%c_proj.", (long long)layer,
                 kinds[kind]);
        add_tensor(m, at, t.name, c->width, t.matrix ? c->width : 0, t.init, t.scale,
                   (struct unit_split){0});
        struct unit_tensor *tensor = &m->tensors[m->graph.tensor_count - 1];
        tensor->phase = t.phase;
        tensor->gated = t.gated && c->sars.gate == SARS_GATE_GLOBAL;
        tensor->gate = statistic + sars_statistic_at(SARS_GOODNESS, c->width) + kind * c->width;
    }
}

static void add_sars_block(struct model *m, int64_t layer)
{
    const struct model_config *c = &m->config;
    int64_t width = c->width, statistics = sars_statistic_at(SARS_STATISTICS, width);
    double std = c->init_std, uniform = 1 / sqrt((double)width);
    char name[32], piece[48], at[40];
    snprintf(name, sizeof name, "block %lld", (long long)layer);
    snprintf(at, sizeof at, "model.layers.%lld.", (long long)layer);
    struct unit *unit =
        add_unit(m, name, layer == 0 ? &sars_first_block_type : &sars_block_type, &m->sars_block);
    unit->first_statistic = layer * statistics;
    unit->statistic_count = statistics;
    add_piece(m, name);
    add_vector(m, unit, at, "input_layernorm.weight", width, INIT_ONE, (struct unit_split){0});
    add_vector(m, unit, at, "input_layernorm.bias", width, INIT_ZERO, (struct unit_split){0});
    add_sars_param(m, unit, layer,
                   (struct sars_tensor){"mu_weight", .matrix = true, .init = INIT_NORMAL,
                                        .scale = std, .gated = true});
    add_sars_param(m, unit, layer,
                   (struct sars_tensor){"mu_bias", .init = INIT_ZERO, .gated = true});
    add_sars_param(m, unit, layer,
                   (struct sars_tensor){"gate_param", .init = INIT_ZERO, .phase = PHASE_META});
    snprintf(piece, sizeof piece, "%s prototypes", name);
    add_piece(m, piece);
    add_sars_param(m, unit, layer,
                   (struct sars_tensor){"proto_weight", .matrix = true, .init = INIT_NORMAL,
                                        .scale = std, .phase = PHASE_META});
    snprintf(piece, sizeof piece, "%s chain", name);
    add_piece(m, piece);
    add_sars_param(m, unit, layer,
                   (struct sars_tensor){"proto_transform.weight", .matrix = true,
                                        .init = INIT_UNIFORM, .scale = uniform});
    add_sars_param(m, unit, layer, (struct sars_tensor){"proto_norm.weight", .init = INIT_ONE});
    add_sars_param(m, unit, layer, (struct sars_tensor){"proto_norm.bias", .init = INIT_ZERO});
}

/* All tensors of SARS decay, vectors too, and the gradient of the first loss is clamped. */
static void set_sars_rules(struct model *m)
{
    for (int t = 0; t < m->graph.tensor_count; t++) {
        m->tensors[t].decay = true;
        m->tensors[t].limit = m->tensors[t].phase == PHASE_MAIN ? m->config.sars.clamp : 0;
    }
}

/* Returns the param of wte. */
static int add_embedding(struct model *m)
{
    const struct model_config *c = &m->config;
    bool gpt2 = c->arch == MODEL_GPT2;
    double sars = c->tied ? 1 / sqrt((double)c->width) : 1; /* a head has no norm before it */
    double deviation = c->arch == MODEL_SARS ? sars : c->init_std;
    struct unit *unit = add_unit(m, "embedding", &embedding_unit_type, &m->embedding);
    add_piece(m, "wte");
    int wte =
        add_matrix(m, unit, gpt2 ? "transformer.wte" : "model.embed_tokens", ".weight", c->vocab,
                   c->width, deviation, part_of_vocab(&m->tp_group, c->vocab, m->tp_group.rank));
    set_matrices(m, 0);
    if (gpt2) {
        add_piece(m, "wpe");
        add_matrix(m, unit, "transformer.wpe", ".weight", c->context, c->width, c->init_std,
                   part_repeated(&m->tp_group, false));
        set_matrices(m, 0);
    }
    return wte;
}

static void add_head(struct model *m, int wte)
{
    const struct model_config *c = &m->config;
    bool gpt2 = c->arch == MODEL_GPT2, sars = c->arch == MODEL_SARS;
    struct unit *unit = add_unit(m, "head", &m->head_type, &m->head);
    if (!sars || !c->tied)
        add_piece(m, "head");
    if (!sars)
        add_vector(m, unit, gpt2 ? "transformer.ln_f" : "model.norm", ".weight", c->width,
                   norm_init(m), norm_split(m));
    if (gpt2)
        add_vector(m, unit, "transformer.ln_f", ".bias", c->width, INIT_ZERO, norm_split(m));
    if (c->tied) {
        use(unit, wte);
        return;
    }
    add_matrix(m, unit, "lm_head", ".weight", c->vocab, c->width, c->init_std,
               part_of_vocab(&m->tp_group, c->vocab, m->tp_group.rank));
    set_matrices(m, 0);
    if (sars) {
        struct unit_tensor *matrix = &m->tensors[m->graph.tensor_count - 1];
        matrix->init = INIT_UNIFORM;
        matrix->init_scale = 1 / sqrt((double)c->width);
    }
}

/* The largest number of vocabulary rows on any rank. */
static int64_t most_vocab(const struct model *m)
{
    int64_t most = m->config.vocab;
    for (int r = 0; m->tp_group.size > 1 && r < m->tp_group.size; r++) {
        int64_t count = part_of_vocab(&m->tp_group, m->config.vocab, r).count;
        most = r == 0 || count > most ? count : most;
    }
    return most;
}

/* Whether the layers have the param. */
static bool has_use(const struct model_config *c, enum block_use use)
{
    const struct model_traits *traits = model_traits(c->arch);
    bool gpt2 = c->arch == MODEL_GPT2;
    switch (use) {
    case BLOCK_NORM1_BIAS:
    case BLOCK_NORM2_BIAS: return gpt2;
    case BLOCK_QKV_BIAS: return gpt2 || traits->qkv_bias || c->attention_bias;
    case BLOCK_PROJ_BIAS: return gpt2 || c->attention_bias;
    case BLOCK_UP_BIAS:
    case BLOCK_DOWN_BIAS: return gpt2 || c->mlp_bias;
    case BLOCK_NORM1:
    case BLOCK_NORM2: return !traits->no_pre_norms;
    case BLOCK_POST1:
    case BLOCK_POST2: return traits->post_norms;
    case BLOCK_Q_NORM:
    case BLOCK_K_NORM: return traits->head_norm || traits->whole_norm;
    default: return true;
    }
}

/* The params of a layer, in the order in which they are added. */
static void list_uses(const struct model_config *c, struct block *block)
{
    int count = 0;
    for (int use = 0; use < BLOCK_USES; use++)
        block->uses[use] = has_use(c, use) ? count++ : -1;
}

int model_block_variant(const struct model_config *c, int64_t layer)
{
    bool nope = c->nope_every > 0 && (layer + 1) % c->nope_every == 0;
    bool full = c->full_every > 0 && (layer + 1) % c->full_every == 0;
    bool window = c->window > 0 && layer >= c->window_from && !full;
    return (nope ? BLOCK_NOPE : 0) | (window ? BLOCK_WINDOW : 0);
}

/* What rotates the queries and keys of a layer; `window`: of one with a window. */
static struct rope rope_of(const struct model *m, bool window)
{
    const float *local = window ? m->rope[ROPE_LOCAL] : NULL;
    return (struct rope){.width = rope_width(&m->config),
                         .table = local ? local : m->rope[ROPE_USUAL],
                         .longer = local ? NULL : m->rope[ROPE_LONGER],
                         .original = m->config.rope_original};
}

static void fill_variants(struct model *m, struct block block)
{
    list_uses(&m->config, &block);
    for (int variant = 0; variant < BLOCK_VARIANTS; variant++) {
        m->blocks[variant] = block;
        if (!(variant & BLOCK_NOPE))
            m->blocks[variant].rope = rope_of(m, variant & BLOCK_WINDOW);
        m->blocks[variant].window = variant & BLOCK_WINDOW ? m->config.window : 0;
    }
    m->block_type = transformer_block_type(&block);
}

/* This rank's part of each size. */
static void fill_sizes(struct model *m)
{
    const struct model_config *c = &m->config;
    bool gpt2 = c->arch == MODEL_GPT2, parts = m->tp_group.size > 1;
    int64_t heads = c->heads / m->tp_group.size, ff = c->ff / m->tp_group.size;
    int64_t kv_heads = parts ? part_of_kv_heads(&m->tp_group, 0, c->kv_heads).count : c->kv_heads;
    int64_t query = heads * c->head_width, key = kv_heads * c->head_width;
    struct unit_split words = part_of_vocab(&m->tp_group, c->vocab, m->tp_group.rank);
    int64_t vocab = parts ? words.count : c->vocab;
    const struct model_traits *traits = model_traits(c->arch);
    double offset = traits->plus_one ? 1 : 0;
    struct norm norm = {traits->llama ? NORM_RMS : NORM_LAYER, c->width, c->norm_eps, offset};
    m->embedding = (struct embedding_unit){.tp_group = m->tp_group,
                                           .width = c->width,
                                           .vocab = vocab,
                                           .first_id = words.first,
                                           .id_count = parts ? c->vocab : 0,
                                           .positions = gpt2 ? c->context : 0,
                                           .scale = traits->scaled ? sqrt((double)c->width) : 0};
    fill_variants(
        m, (struct block){.tp_group = m->tp_group,
                          .norm = norm,
                          .heads = heads,
                          .kv_heads = kv_heads,
                          .head_width = c->head_width,
                          .scale = c->query_scalar > 0 ? 1 / sqrt((double)c->query_scalar) : 0,
                          .cap = c->score_cap,
                          .head_rms = {.heads = heads,
                                       .kv_heads = kv_heads,
                                       .head_width = c->head_width,
                                       .whole = traits->whole_norm ? c->heads : 0,
                                       .eps = c->norm_eps,
                                       .offset = offset},
                          .qkv = {c->width, query + 2 * key, .out_in = !gpt2},
                          .proj = {query, c->width, .out_in = !gpt2},
                          .up = {c->width, gpt2 ? ff : 2 * ff, .out_in = !gpt2},
                          .down = {ff, c->width, .out_in = !gpt2},
                          .geglu = traits->geglu,
                          .exact = c->gelu == 1,
                          .gated = !gpt2});
    m->sars_block = (struct sars_block){
        .block = m->blocks[0], .width = c->width, .layers = c->layers, .sars = c->sars};
    m->head = (struct head_unit){.tp_group = m->tp_group,
                                 .norm = norm,
                                 .norm_bias = gpt2,
                                 .plain = c->arch == MODEL_SARS,
                                 .linear = {c->width, vocab, .out_in = true},
                                 .vocab = c->vocab,
                                 .first_id = words.first,
                                 .most = most_vocab(m),
                                 .logit_cap = c->logit_cap};
    m->head_type = head_unit_type(&m->head);
}

static void build(struct model *m)
{
    const struct model_config *c = &m->config;
    fill_sizes(m);
    int wte = add_embedding(m);
    void (*add_block)(struct model *, int64_t) = c->arch == MODEL_SARS   ? add_sars_block
                                                 : c->arch == MODEL_GPT2 ? add_gpt2_block
                                                                         : add_llama_block;
    for (int64_t layer = 0; layer < c->layers; layer++)
        add_block(m, layer);
    add_head(m, wte);
    if (c->arch == MODEL_SARS) {
        set_sars_rules(m);
        m->graph.carry = SARS_KINDS * c->width * c->width;
        m->graph.statistics = c->layers * sars_statistic_at(SARS_STATISTICS, c->width);
    }
    m->graph.tensors = m->tensors;
    m->graph.params = m->params;
    m->graph.pieces = m->pieces;
    m->graph.units = m->units;
    m->graph.stream_width = c->width;
    m->graph.vocab = c->vocab;
    m->graph.context = c->context;
    m->graph.short_text = rope_has(c, ROPE_LONGER) ? c->rope_original : 0;
    m->graph.sequence = m->part.sequence ? m->tp_group.size : 0;
    unit_graph_check(&m->graph);
}

static enum status freeze(struct model *m, const char *globs)
{
    struct env *env = device_env(m->device);
    const char *reason = model_limits(m->config.arch)->freeze;
    if (!globs || !*globs)
        return STATUS_OK;
    if (reason)
        return FAIL(env, CONFIG, "train.freeze: model.arch %s cannot freeze: %s; leave the key out",
                    model_arch_word(m->config.arch), reason);
    TRY(unit_freeze(env, globs, &m->graph, m->params, m->pieces, m->units));
    unit_graph_check(&m->graph);
    return STATUS_OK;
}

/* --- the rotary tables ---------------------------------------------------------------------- */

static enum status create_table(struct model *m, enum rope_table which)
{
    struct env *env = device_env(m->device);
    size_t bytes = (size_t)(m->config.context * rope_width(&m->config)) * sizeof(float);
    struct stream *stream;
    float *host;
    TRY(device_alloc(m->device, MEM_OTHER, "rope table", bytes, &m->rope[which]));
    if (device_is_dry(m->device))
        return STATUS_OK;
    TRY(mem_alloc(env, MEM_OTHER, "rope table on the host", bytes, &host));
    rope_table_fill(&m->config, which, host);
    enum status st = stream_create(m->device, "rope table", &stream);
    if (st == STATUS_OK) {
        device_copy(stream, m->rope[which], host, bytes);
        st = stream_sync(stream);
        stream_destroy(stream);
    }
    mem_free(env, host);
    return st;
}

static enum status create_rope(struct model *m)
{
    for (int which = 0; which < ROPE_TABLES; which++)
        if (rope_has(&m->config, which))
            TRY(create_table(m, which));
    return STATUS_OK;
}

/* --- life ----------------------------------------------------------------------------------- */
enum status model_create(struct device *device, const struct model_config *config,
                         struct model **model)
{
    struct model_part whole = {.tp = 1};
    return model_create_part(device, config, &whole, model);
}

enum status model_create_part(struct device *device, const struct model_config *config,
                              const struct model_part *part, struct model **model)
{
    struct env *env = device_env(device);
    struct model *m;
    enum status st;
    TRY(model_check(env, config));
    TRY(model_part_check(env, config, part));
    TRY(mem_alloc(env, MEM_OTHER, "model", sizeof *m, &m));
    m->device = device;
    m->config = *config;
    m->config.path = m->config.freeze = "";
    m->part = *part;
    m->part.sequence = part->sequence && part->tp > 1; /* one rank has all rows */
    size_t layers = (size_t)config->layers, params = layers * LAYER_PARAMS + END_PARAMS;
    m->tp_group = (struct tp_group){part->tp, part->t, part->regather};
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "model", layers * LAYER_TENSORS + END_TENSORS,
                                 sizeof *m->tensors, &m->tensors));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "model", params, sizeof *m->params, &m->params));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "model", params, sizeof *m->pieces, &m->pieces));
    TRY_OR(undo, mem_alloc_array(env, MEM_OTHER, "model", layers + END_UNITS, sizeof *m->units,
                                 &m->units));
    if (model_traits(config->arch)->llama || (config->arch == MODEL_SARS && config->sars.rope))
        TRY_OR(undo, create_rope(m));
    build(m);
    TRY_OR(undo, freeze(m, config->freeze));
    *model = m;
    return STATUS_OK;
undo:
    model_destroy(m);
    return st;
}

void model_destroy(struct model *m)
{
    if (!m)
        return;
    struct env *env = device_env(m->device);
    for (int which = 0; which < ROPE_TABLES; which++)
        device_free(m->device, m->rope[which]);
    mem_free(env, m->units);
    mem_free(env, m->pieces);
    mem_free(env, m->params);
    mem_free(env, m->tensors);
    mem_free(env, m);
}

const struct unit_graph *model_graph(const struct model *m)
{
    return &m->graph;
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

/* Of the three products with a frozen matrix, one is omitted, and two where there is no backward pass.
 * The embedding computes no products. */
static double frozen_thirds(const struct model *m)
{
    double count = 0;
    for (int u = 1; u < m->graph.unit_count; u++)
        for (int i = 0; i < m->units[u].use_count; i++)
            if (m->units[u].frozen >> i & 1)
                count += (double)unit_param_whole(&m->graph, m->units[u].uses[i]) *
                         (u < m->graph.backward_from ? 2 : 1);
    return count / 3;
}

double model_flops_per_token(const struct model *m, int64_t tokens)
{
    const struct model_config *c = &m->config;
    int from = m->graph.backward_from;
    double passes = 3.0 * (double)c->layers - 2.0 * (from > 0 ? from - 1 : 0);
    double attention = 4.0 * passes * (double)(c->heads * c->head_width) * (double)tokens;
    double count = (double)unit_graph_count(&m->graph) - frozen_thirds(m),
           square = (double)(c->width * c->width);
    double layers = (double)(SARS_KINDS * c->layers);
    if (c->arch != MODEL_SARS)
        return 6.0 * count + attention;
    /* Prototypes have no gradient of their input; the chain does not depend on the tokens. */
    return 6.0 * (count - 2 * layers * square) + 4.0 * layers * square + attention;
}
