/* A model directory, written and read back, has the same bits; naming conventions of other programs
 * are accepted; every difference is reported by name. */
#include "scratch.h"
#include "train/weights/model_file.h"
#include "train/models/model_weights.h"
#include "train/weights/safetensors_write.h"
#include "train/session.h"

static const struct model_config gpt2 = {.arch = MODEL_GPT2,
                                         .layers = 2,
                                         .heads = 2,
                                         .kv_heads = 2,
                                         .width = 12,
                                         .ff = 20,
                                         .context = 9,
                                         .vocab = 300,
                                         .head_width = 6,
                                         .tied = 1,
                                         .norm_eps = 1e-5,
                                         .init_std = 0.02,
                                         .rope_theta = 10000,
                                         .path = ""};
static const struct model_config llama = {.arch = MODEL_LLAMA,
                                          .layers = 2,
                                          .heads = 4,
                                          .kv_heads = 2,
                                          .width = 16,
                                          .ff = 24,
                                          .context = 32,
                                          .vocab = 301,
                                          .head_width = 4,
                                          .tied = 0,
                                          .norm_eps = 1e-6,
                                          .init_std = 0.03,
                                          .rope_theta = 500000,
                                          .rope_scaling = ROPE_LLAMA3,
                                          .rope_factor = 8,
                                          .rope_low = 1,
                                          .rope_high = 4,
                                          .rope_original = 8192,
                                          .path = ""};

static const struct model_config sars = {.arch = MODEL_SARS,
                                         .layers = 2,
                                         .heads = 2,
                                         .kv_heads = 2,
                                         .width = 12,
                                         .context = 24,
                                         .vocab = 301,
                                         .head_width = 6,
                                         .tied = 0,
                                         .norm_eps = 2e-5,
                                         .init_std = 0.03,
                                         .rope_theta = 5000,
                                         .path = "",
                                         .sars = {.rope = true}};

static void session_open(struct scratch *s, const struct model_config *config, uint64_t seed,
                         struct session *session)
{
    struct zero_config reads_only = {0};
    assert_int_equal(session_create(&s->env,
                                    (struct compute_config){.backend = "cpu", .type = DTYPE_F32},
                                    config, &reads_only, session),
                     STATUS_OK);
    assert_int_equal(zero_init(session->zero, seed), STATUS_OK);
}

/* Load whatever is at `path`. */
static enum status load(struct scratch *s, const char *path, struct session *session)
{
    const struct model_want want = {.depth = MODEL_DEPTH_ALL};
    struct model_source *source;
    TRY(model_source_open(&s->env, path, &want, &source));
    enum status st = model_weights_load(&s->env, source, session->model, session->zero);
    model_source_close(source);
    return st;
}

/* All parameters of the two stores have the same bits. */
static bool same_values(struct session *a, struct session *b)
{
    static float x[65536], y[65536];
    const struct unit_graph *graph = model_graph(a->model);
    bool same = true;
    for (int i = 0; i < graph->tensor_count; i++) {
        int64_t count = unit_tensor_count(&graph->tensors[i]);
        assert_true(count <= 65536);
        assert_int_equal(zero_read(a->zero, i, 0, count, x), STATUS_OK);
        assert_int_equal(zero_read(b->zero, i, 0, count, y), STATUS_OK);
        same = same && memcmp(x, y, (size_t)count * sizeof *x) == 0;
    }
    return same;
}

/* --- writing a file as other programs do ---------------------------------------------------- */

enum habit {
    NO_PREFIX = 1,  /* names without "transformer." or "model." */
    MASKS = 2,      /* constant buffers */
    HEAD = 4,       /* lm_head.weight although tied */
    OTHER_HEAD = 8, /* and not equal to the embedding */
    LOSE_ONE = 16,  /* the last tensor is missing */
    ADD_ONE = 32,   /* an unknown tensor */
    BEND_ONE = 64,  /* the first tensor has one row too few */
    ODD_ONLY = 128, /* only tensors with an odd index */
    EVEN_ONLY = 256,
};

struct writing {
    struct session *session;
    int habits;
    int source[64]; /* index of each entry's tensor, -1 = zeros */
    enum dtype type;
};

static enum status fill(void *user, int entry, int64_t first, int64_t count, void *out)
{
    struct writing *w = user;
    static float values[65536];
    memset(values, 0, sizeof values);
    if (w->source[entry] >= 0)
        assert_int_equal(zero_read(w->session->zero, w->source[entry], first, count, values),
                         STATUS_OK);
    if (entry > 0 && w->source[entry] == 0 && (w->habits & OTHER_HEAD))
        values[3] += 1;
    dtype_convert(out, w->type, values, DTYPE_F32, count);
    return STATUS_OK;
}

static const char *after_prefix(const char *name)
{
    const char *point = strchr(name, '.');
    return strncmp(name, "lm_head", 7) == 0 ? name : point + 1;
}

static void write_foreign(struct scratch *s, const char *path, struct session *session, int habits,
                          enum dtype type)
{
    const struct unit_graph *graph = model_graph(session->model);
    struct writing w = {.session = session, .habits = habits, .type = type};
    struct safetensors_entry entries[64];
    struct safetensors_layout *layout;
    int count = 0;
    for (int i = 0; i < graph->tensor_count; i++) {
        const struct unit_tensor *tensor = &graph->tensors[i];
        const char *name = tensor->name;
        if ((habits & LOSE_ONE && i == graph->tensor_count - 1) ||
            (habits & ODD_ONLY && i % 2 == 0) || (habits & EVEN_ONLY && i % 2 == 1))
            continue;
        entries[count] =
            (struct safetensors_entry){.name = habits & NO_PREFIX ? after_prefix(name) : name,
                                       .type = type,
                                       .rank = tensor->dims};
        memcpy(entries[count].shape, tensor->shape, sizeof tensor->shape);
        if (habits & BEND_ONE && i == 0)
            entries[count].shape[0]--;
        w.source[count++] = i;
    }
    if (habits & MASKS) {
        entries[count] = (struct safetensors_entry){
            .name = "h.0.attn.bias", .type = type, .rank = 4, .shape = {1, 1, 9, 9}};
        w.source[count++] = -1;
        entries[count] =
            (struct safetensors_entry){.name = "h.0.attn.masked_bias", .type = type, .rank = 0};
        w.source[count++] = -1;
    }
    if (habits & (HEAD | OTHER_HEAD)) {
        entries[count] = entries[0];
        entries[count].name = "lm_head.weight";
        w.source[count++] = 0;
    }
    if (habits & ADD_ONE) {
        entries[count] = (struct safetensors_entry){
            .name = "adapter.weight", .type = type, .rank = 1, .shape = {3}};
        w.source[count++] = -1;
    }
    assert_int_equal(safetensors_layout_create(&s->env, entries, count, NULL, 0, &layout),
                     STATUS_OK);
    assert_int_equal(safetensors_write(&s->env, path, layout, fill, &w), STATUS_OK);
    safetensors_layout_destroy(layout);
}

/* --- round trips ---------------------------------------------------------------------------- */

static void expect_round_trip(const struct model_config *config)
{
    struct scratch s;
    struct session saved, loaded;
    struct tokenizer *tokenizer;
    struct model_config read = {
        .path = "kept", .preset = 3, .sars = {.gate = SARS_GATE_LOCAL, .meta_weight = 7}};
    scratch_open(&s);
    session_open(&s, config, 1, &saved);
    session_open(&s, config, 2, &loaded);
    assert_int_equal(tokenizer_bytes(&s.env, &tokenizer), STATUS_OK);
    assert_false(same_values(&saved, &loaded));
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "m")), STATUS_OK);
    assert_int_equal(
        model_file_describe(&s.env, scratch_path(&s, "m"), saved.model, DTYPE_F32, tokenizer),
        STATUS_OK);
    write_foreign(&s, scratch_path(&s, "m/model.safetensors"), &saved, 0, DTYPE_F32);
    assert_int_equal(load(&s, scratch_path(&s, "m"), &loaded), STATUS_OK);
    assert_true(same_values(&saved, &loaded));

    assert_int_equal(model_file_config(&s.env, scratch_path(&s, "m"), &read), STATUS_OK);
    assert_string_equal(read.path, "kept");
    assert_int_equal(read.preset, 3);
    assert_int_equal(model_check(&s.env, &read), STATUS_OK);
    assert_int_equal(read.arch, config->arch);
    assert_int_equal(read.layers, config->layers);
    assert_int_equal(read.heads, config->heads);
    assert_int_equal(read.kv_heads, config->kv_heads);
    assert_int_equal(read.width, config->width);
    assert_int_equal(read.head_width, config->head_width);
    assert_int_equal(read.ff, config->ff);
    assert_int_equal(read.context, config->context);
    assert_int_equal(read.vocab, config->vocab);
    assert_int_equal(read.tied, config->tied);
    assert_int_equal(read.rope_scaling, config->rope_scaling);
    assert_true(read.norm_eps == config->norm_eps);
    assert_int_equal(read.sars.rope, config->sars.rope);
    assert_true(read.sars.gate == SARS_GATE_LOCAL && read.sars.meta_weight == 7); /* kept */
    if (config->arch == MODEL_SARS)
        assert_true(read.rope_theta == config->rope_theta);
    if (config->arch == MODEL_LLAMA)
        assert_true(read.rope_theta == config->rope_theta &&
                    read.rope_factor == config->rope_factor &&
                    read.rope_original == config->rope_original);
    assert_true(file_exists(scratch_path(&s, "m/tokenizer.json")));
    assert_true(file_exists(scratch_path(&s, "m/tokenizer_config.json")));
    assert_true(file_exists(scratch_path(&s, "m/generation_config.json")));
    tokenizer_destroy(tokenizer);
    session_destroy(&loaded);
    session_destroy(&saved);
    scratch_close(&s);
}

static void test_gpt2_reads_back(void **state)
{
    (void)state;
    expect_round_trip(&gpt2);
}

static void test_llama_reads_back(void **state)
{
    (void)state;
    expect_round_trip(&llama);
}

static void test_sars_reads_back(void **state)
{
    (void)state;
    expect_round_trip(&sars);
}

/* --- conventions of other programs ---------------------------------------------------------- */

/* Write a model with the given conventions and read it; *same: the values are unchanged. */
static enum status try_model(struct scratch *s, const struct model_config *config, int habits,
                             enum dtype type, bool *same)
{
    struct session saved, loaded;
    session_open(s, config, 1, &saved);
    session_open(s, config, 2, &loaded);
    write_foreign(s, scratch_path(s, "x.safetensors"), &saved, habits, type);
    enum status st = load(s, scratch_path(s, "x.safetensors"), &loaded);
    *same = same_values(&saved, &loaded);
    session_destroy(&loaded);
    session_destroy(&saved);
    return st;
}

static enum status try_habits(struct scratch *s, int habits, enum dtype type, bool *same)
{
    return try_model(s, &gpt2, habits, type, same);
}

static void test_common_conventions_are_accepted(void **state)
{
    (void)state;
    static const int fine[] = {0, NO_PREFIX, MASKS, HEAD, NO_PREFIX | MASKS | HEAD};
    struct scratch s;
    bool same;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        assert_int_equal(try_habits(&s, fine[i], DTYPE_F32, &same), STATUS_OK);
        assert_true(same);
    }
    assert_int_equal(try_model(&s, &llama, NO_PREFIX, DTYPE_F32, &same), STATUS_OK);
    assert_true(same);
    assert_int_equal(try_habits(&s, 0, DTYPE_BF16, &same), STATUS_OK);
    assert_false(same); /* rounded to 8 bits */
    assert_int_equal(try_habits(&s, 0, DTYPE_F16, &same), STATUS_OK);
    scratch_close(&s);
}

static void test_bf16_is_widened_exactly(void **state)
{
    (void)state;
    struct scratch s;
    struct session saved, loaded;
    float value, original;
    scratch_open(&s);
    session_open(&s, &gpt2, 1, &saved);
    session_open(&s, &gpt2, 2, &loaded);
    write_foreign(&s, scratch_path(&s, "x.safetensors"), &saved, 0, DTYPE_BF16);
    assert_int_equal(load(&s, scratch_path(&s, "x.safetensors"), &loaded), STATUS_OK);
    assert_int_equal(zero_read(saved.zero, 0, 17, 1, &original), STATUS_OK);
    assert_int_equal(zero_read(loaded.zero, 0, 17, 1, &value), STATUS_OK);
    assert_true(value == bf16_to_f32(f32_to_bf16(original)));
    session_destroy(&loaded);
    session_destroy(&saved);
    scratch_close(&s);
}

static void test_differences_are_listed(void **state)
{
    (void)state;
    static const struct {
        int habits;
        const char *words;
    } cases[] = {
        {LOSE_ONE, "1 missing (transformer.ln_f.bias); config.json must describe"},
        {ADD_ONE, "1 unexpected (adapter.weight)"},
        {BEND_ONE, "1 of another shape (transformer.wte.weight [299,12] instead of [300,12])"},
        {OTHER_HEAD, "lm_head.weight is not the embedding"},
        {ODD_ONLY, "missing (transformer.wte.weight, transformer.h.0.ln_1.weight, "},
    };
    struct scratch s;
    bool same;
    scratch_open(&s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(try_habits(&s, cases[i].habits, DTYPE_F32, &same), STATUS_FORMAT);
        scratch_expect(&s, cases[i].words);
    }
    scratch_close(&s);
}

/* --- several files -------------------------------------------------------------------------- */

static enum status load_indexed(struct scratch *s, const char *index, bool *same)
{
    struct session saved, loaded;
    session_open(s, &gpt2, 1, &saved);
    session_open(s, &gpt2, 2, &loaded);
    assert_int_equal(dir_create(&s->env, scratch_path(s, "m")), STATUS_OK);
    scratch_text(s, "m/config.json", "{\"model_type\":\"gpt2\"}");
    write_foreign(s, scratch_path(s, "m/model-00001-of-00002.safetensors"), &saved, ODD_ONLY,
                  DTYPE_F32);
    write_foreign(s, scratch_path(s, "m/model-00002-of-00002.safetensors"), &saved, EVEN_ONLY,
                  DTYPE_F32);
    scratch_text(s, "m/model.safetensors.index.json", index);
    enum status st = load(s, scratch_path(s, "m"), &loaded);
    *same = same_values(&saved, &loaded);
    session_destroy(&loaded);
    session_destroy(&saved);
    return st;
}

static void test_several_files_are_found_by_their_index(void **state)
{
    (void)state;
    struct scratch s;
    bool same;
    scratch_open(&s);
    assert_int_equal(
        load_indexed(
            &s,
            "{\"metadata\": {}, \"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", "
            "\"b\": \"model-00002-of-00002.safetensors\", \"c\": "
            "\"model-00001-of-00002.safetensors\"}}",
            &same),
        STATUS_OK);
    assert_true(same);
    assert_int_equal(
        load_indexed(&s, "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}", &same),
        STATUS_FORMAT);
    scratch_expect(&s, "missing");
    assert_int_equal(
        load_indexed(&s, "{\"weight_map\": {\"a\": \"../secret.safetensors\"}}", &same),
        STATUS_FORMAT);
    scratch_expect(&s, "no file of this folder");
    assert_int_equal(load_indexed(&s, "{\"weight_map\": {\"a\": 7}}", &same), STATUS_FORMAT);
    log_error_clear(s.env.log);
    assert_int_equal(load_indexed(&s, "{\"weight_map\": []}", &same), STATUS_FORMAT);
    scratch_expect(&s, "there is no weight_map");
    assert_int_equal(load_indexed(&s, "{\"weight_map\": {", &same), STATUS_FORMAT);
    scratch_expect(&s, "line 1");
    scratch_close(&s);
}

/* Whatever allocation fails while saving or loading, everything is freed. */
static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct scratch s;
    struct session session;
    struct tokenizer *tokenizer;
    scratch_open(&s);
    session_open(&s, &gpt2, 1, &session);
    assert_int_equal(tokenizer_bytes(&s.env, &tokenizer), STATUS_OK);
    assert_int_equal(dir_create(&s.env, scratch_path(&s, "m")), STATUS_OK);
    write_foreign(&s, scratch_path(&s, "m/model.safetensors"), &session, 0, DTYPE_F32);
    size_t before = mem_total(s.env.mem);
    enum status st = STATUS_MEMORY;
    for (int n = 1; st == STATUS_MEMORY; n++) {
        mem_fail_at(s.env.mem, n);
        st =
            model_file_describe(&s.env, scratch_path(&s, "m"), session.model, DTYPE_F32, tokenizer);
        mem_fail_at(s.env.mem, 0);
        assert_int_equal(mem_total(s.env.mem), before);
    }
    assert_int_equal(st, STATUS_OK);
    st = STATUS_MEMORY;
    for (int n = 1; st == STATUS_MEMORY; n++) {
        mem_fail_at(s.env.mem, n);
        st = load(&s, scratch_path(&s, "m"), &session);
        mem_fail_at(s.env.mem, 0);
        assert_int_equal(mem_total(s.env.mem), before);
    }
    assert_int_equal(st, STATUS_OK);
    tokenizer_destroy(tokenizer);
    session_destroy(&session);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_reads_back),
        cmocka_unit_test(test_llama_reads_back),
        cmocka_unit_test(test_sars_reads_back),
        cmocka_unit_test(test_common_conventions_are_accepted),
        cmocka_unit_test(test_bf16_is_widened_exactly),
        cmocka_unit_test(test_differences_are_listed),
        cmocka_unit_test(test_several_files_are_found_by_their_index),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
