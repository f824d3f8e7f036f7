/* Tiny complete models: backward against finite differences, recomputation against keeping,
 * decoding against forward. */
#include "model/model_rig.h"

static const struct unit_shape SHAPE = {2, 7, 0};

/* The heads together are wider than the stream: reused buffers are sized by their second user. */
static struct model_config wide_heads(void)
{
    struct model_config c = rig_llama();
    c.heads = 4;
    c.kv_heads = 1;
    c.head_width = 6;
    c.tied = 0;
    c.rope_scaling = ROPE_LINEAR;
    c.rope_factor = 2;
    return c;
}

/* Append the relatives of Llama; returns the count of all. */
enum { OTHERS = 7 };
static int add_relatives(struct model_config *configs, int count)
{
    for (int arch = 0; arch < MODEL_ARCHS; arch++)
        if (model_traits(arch)->llama)
            configs[count++] = rig_relative(arch);
    return count;
}

/* Four of six columns are rotated, and scaled by a factor: the backward pass is no rotation. */
static struct model_config partial_yarn(void)
{
    struct model_config c = wide_heads();
    c.rope_scaling = ROPE_YARN;
    c.rope_original = 4;
    c.rope.part = 0.7;
    c.rope.attention = 0.8;
    return c;
}

/* Sequences are longer than the original context. */
static struct model_config longrope(void)
{
    struct model_config c = wide_heads();
    c.rope_scaling = ROPE_LONGROPE;
    c.rope_original = 5;
    c.rope.shorter = (struct rope_list){3, {1, 1.5, 2}};
    c.rope.longer = (struct rope_list){3, {0.5, 3, 0.25}};
    return c;
}

static struct model_config untied_gpt2(void)
{
    struct model_config c = rig_gpt2();
    c.gelu = 1;
    c.tied = 0;
    return c;
}

/* --- finite differences --------------------------------------------------------------------- */

/* `samples` elements of every tensor. `step`: of the difference. */
static void check_gradients(const struct model_config *config, int samples, double step)
{
    struct rig r;
    rig_open(&r, config, "ref", DTYPE_F64, SHAPE, KEEP_NOT);
    rig_fill_params(&r, 0.3);
    rig_gradients(&r);
    double norm = 0;
    for (int p = 0; p < r.graph->param_count; p++) {
        int64_t first = 0;
        const struct unit_param *param = &r.graph->params[p];
        for (int t = 0; t < param->tensor_count; t++) {
            const struct unit_tensor *tensor = &r.graph->tensors[param->first_tensor + t];
            struct rng rng = rng_stream(3, tensor->name);
            for (int s = 0; s < samples; s++) {
                int64_t i = first + rig_sample(&r, tensor, rng_below(rng, (uint64_t)s, 1u << 30));
                double found = rig_gradient(&r, p, i);
                double expected = rig_difference(&r, p, i, step, rig_mean_loss, NULL);
                norm += expected * expected;
                if (!(fabs(found - expected) < 2e-5 * (1 + fabs(expected))))
                    fail_msg("%s[%lld]: backward %.9g, finite difference %.9g", tensor->name,
                             (long long)(i - first), found, expected);
            }
            first += unit_tensor_count(tensor);
        }
    }
    assert_true(norm > 1e-4);
    rig_close(&r);
}

static void test_gpt2_gradients(void **state)
{
    (void)state;
    struct model_config tied = rig_gpt2(), own = untied_gpt2();
    check_gradients(&tied, 6, 1e-2);
    check_gradients(&own, 3, 1e-2);
}

static void test_llama_gradients(void **state)
{
    (void)state;
    struct model_config configs[] = {rig_llama(), wide_heads(), partial_yarn(), longrope()};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++)
        check_gradients(&configs[i], 6, 1e-2);
}

static void test_gradients_of_relatives(void **state)
{
    (void)state;
    struct model_config configs[MODEL_ARCHS];
    int count = add_relatives(configs, 0);
    for (int i = 0; i < count; i++)
        check_gradients(&configs[i], 3, 1e-3);
}

/* --- the loss in chunks --------------------------------------------------------------------- */

/* Copy sequences of `from`, starting at `first`, into `to`, with the same weight in the mean. */
static void copy_batch(const struct rig *from, int64_t first, struct rig *to)
{
    size_t bytes = (size_t)(to->shape.batch * to->shape.tokens) * sizeof(int32_t);
    memcpy(to->tokens, from->tokens + first * to->shape.tokens, bytes);
    memcpy(to->labels, from->labels + first * to->shape.tokens, bytes);
    *to->scalars = *from->scalars;
}

/* A vocabulary so large that the loss is computed in chunks of rows: the gradient is the sum of
 * those of two halves of the batch, each of which is one chunk. */
static void test_chunked_loss(void **state)
{
    (void)state;
    struct model_config c = rig_gpt2();
    c.layers = 1;
    c.width = 4;
    c.heads = c.kv_heads = 1;
    c.head_width = 4;
    c.vocab = 65537;
    struct rig whole, half[2];
    double loss = 0;
    rig_open(&whole, &c, "ref", DTYPE_F64, (struct unit_shape){60, 9, 0}, KEEP_NOT);
    assert_int_equal(head_chunk_rows(whole.ops, 540, c.vocab), 320);
    assert_int_equal(head_chunk_rows(whole.ops, 270, c.vocab), 270);
    rig_fill_params(&whole, 0.3);
    for (int i = 0; i < 2; i++) {
        rig_open(&half[i], &c, "ref", DTYPE_F64, (struct unit_shape){30, 9, 0}, KEEP_NOT);
        rig_fill_params(&half[i], 0.3);
        copy_batch(&whole, 30 * i, &half[i]);
        loss += rig_gradients(&half[i]);
    }
    assert_true(fabs(rig_gradients(&whole) - loss) < 1e-9 * loss);
    for (int p = 0; p < whole.graph->param_count; p++) {
        double difference = 0, norm = 0;
        for (int64_t i = 0; i < unit_param_count(whole.graph, p); i++) {
            double sum = rig_gradient(&half[0], p, i) + rig_gradient(&half[1], p, i);
            difference += pow(rig_gradient(&whole, p, i) - sum, 2);
            norm += sum * sum;
        }
        assert_true(norm > 0);
        assert_true(difference < 1e-20 * norm + 1e-30);
    }
    rig_close(&half[1]);
    rig_close(&half[0]);
    rig_close(&whole);
}

static void test_chunk_rows(void **state)
{
    (void)state;
    struct rig rig;
    struct model_config c = rig_gpt2();
    rig_open(&rig, &c, "cpu", DTYPE_F32, (struct unit_shape){1, 2, 0}, KEEP_NOT);
    assert_int_equal(head_chunk_rows(rig.ops, 4096, 8192), 2048);
    assert_int_equal(head_chunk_rows(rig.ops, 1024, 50304), 512);
    assert_int_equal(head_chunk_rows(rig.ops, 7, 50304), 7);
    assert_int_equal(head_chunk_rows(rig.ops, 4096, 128256), 512);
    for (int64_t rows = 1; rows < 3000; rows += 37)
        for (int64_t vocab = 1; vocab < 300000; vocab = vocab * 3 + 1) {
            int64_t chunk = head_chunk_rows(rig.ops, rows, vocab);
            assert_true(chunk >= 1 && chunk <= rows);
            assert_true(chunk == rows || chunk % OPS_BLOCK == 0);
            assert_true(chunk <= 512 || chunk * vocab <= 16 << 20);
        }
    rig_close(&rig);
}

/* --- recomputation, and backward in two halves ---------------------------------------------- */
static void check_same_bits(const struct model_config *config, const char *backend, enum dtype type,
                            enum keep rebuild, bool parts)
{
    struct rig kept, remade;
    struct model_part whole = {.tp = 1};
    rig_open(&kept, config, backend, type, SHAPE, KEEP_NOT);
    rig_open_part(&remade, config, backend, type, SHAPE, rebuild, parts, &whole);
    rig_fill_params(&kept, 0.3);
    rig_fill_params(&remade, 0.3);
    double loss = rig_gradients(&kept), again = rig_gradients(&remade), evaluated = rig_eval(&kept);
    assert_memory_equal(&loss, &again, sizeof loss);
    assert_memory_equal(&loss, &evaluated, sizeof loss);
    assert_memory_equal(kept.gradient, remade.gradient,
                        (size_t)(SHAPE.batch * SHAPE.tokens * config->width) * dtype_bytes(type));
    for (int u = 0; u < kept.graph->unit_count; u++)
        for (int i = 0; i < kept.graph->units[u].use_count; i++)
            if (memcmp(kept.grads[u][i], remade.grads[u][i],
                       rig_param_bytes(&kept, kept.graph->units[u].uses[i])) != 0)
                fail_msg("%s: the gradient of use %d differs", kept.graph->units[u].name, i);
    rig_close(&remade);
    rig_close(&kept);
}

static void test_recompute_same_bits(void **state)
{
    (void)state;
    struct model_config configs[OTHERS + MODEL_ARCHS] = {rig_gpt2(), rig_llama(), wide_heads(),
                                                         rig_sars()};
    int count = add_relatives(configs, 4);
    for (int i = 0; i < count; i++)
        for (enum keep rebuild = KEEP_UNLESS_FULL; rebuild <= KEEP_UNLESS_SELECTIVE; rebuild++) {
            check_same_bits(&configs[i], "ref", DTYPE_F64, rebuild, false);
            check_same_bits(&configs[i], "ref", DTYPE_F32, rebuild, false);
            check_same_bits(&configs[i], "cpu", DTYPE_F32, rebuild, false);
        }
}

static void test_two_parts_same_bits(void **state)
{
    (void)state;
    struct model_config configs[OTHERS + MODEL_ARCHS] = {rig_gpt2(), rig_llama(), wide_heads()};
    int count = add_relatives(configs, 3);
    for (int i = 0; i < count; i++)
        for (enum keep rebuild = KEEP_UNLESS_FULL; rebuild <= KEEP_NOT; rebuild++) {
            check_same_bits(&configs[i], "ref", DTYPE_F64, rebuild, true);
            check_same_bits(&configs[i], "ref", DTYPE_F32, rebuild, true);
            check_same_bits(&configs[i], "cpu", DTYPE_F32, rebuild, true);
        }
}

/* --- decoding ------------------------------------------------------------------------------- */

/* (B, T, V) logits, by forward. */
static void forward_logits(struct rig *r, void *logits)
{
    struct unit_run run = rig_run(r);
    run.logits = logits;
    run.logit_tokens = r->shape.tokens;
    rig_forward(r, PASS_FORWARD, &run);
    rig_pass(r, r->graph->unit_count - 1, PASS_LOGITS, &run);
}

/* Feed the same tokens as 3 + 1 + rest through the caches and compare each chunk's last logits. */
static void check_decode(const struct model_config *config, const char *backend, enum dtype type,
                         double tolerance)
{
    struct rig r;
    rig_open(&r, config, backend, type, SHAPE, KEEP_NOT);
    rig_fill_params(&r, 0.3);
    int64_t batch = SHAPE.batch, tokens = SHAPE.tokens, vocab = config->vocab;
    size_t element = dtype_bytes(type);
    void *all = rig_block(&r, (size_t)(batch * tokens * vocab) * element);
    void *last = rig_block(&r, (size_t)(batch * vocab) * element);
    void *caches[RIG_UNITS] = {NULL};
    forward_logits(&r, all);

    for (int u = 0; u < r.graph->unit_count; u++) {
        const struct unit *unit = &r.graph->units[u];
        if (unit->type->cache_bytes)
            caches[u] = rig_block(&r, unit->type->cache_bytes(unit, r.ops, batch, tokens + 1));
    }
    int32_t fed[16];
    const int64_t chunks[] = {3, 1, tokens - 4};
    int64_t past = 0;
    for (int c = 0; c < 3; past += chunks[c++]) {
        for (int64_t b = 0; b < batch; b++)
            memcpy(fed + b * chunks[c], r.tokens + b * tokens + past,
                   (size_t)chunks[c] * sizeof *fed);
        struct unit_run run = rig_run(&r);
        run.shape.tokens = chunks[c];
        run.tokens = fed;
        run.past = (struct past){past, NULL};
        run.cache_tokens = tokens + 1;
        run.text_tokens = tokens;
        run.logits = last;
        run.logit_tokens = 1;
        for (int u = 0; u < r.graph->unit_count; u++) {
            run.cache = caches[u];
            rig_pass(&r, u, u < r.graph->unit_count - 1 ? PASS_DECODE : PASS_LOGITS, &run);
            run.residual = run.out_residual;
            run.pending = run.out_pending;
        }
        for (int64_t b = 0; b < batch; b++)
            for (int64_t v = 0; v < vocab; v++) {
                int64_t row = b * tokens + past + chunks[c] - 1;
                double full = rig_get(&r, all, row * vocab + v);
                double cached = rig_get(&r, last, b * vocab + v);
                if (!(fabs(full - cached) <= tolerance * (1 + fabs(full))))
                    fail_msg("chunk %d, sequence %lld, token %lld: %.9g by forward, %.9g decoded",
                             c, (long long)b, (long long)v, full, cached);
            }
    }
    for (int u = 0; u < r.graph->unit_count; u++)
        device_free(r.device, caches[u]);
    device_free(r.device, last);
    device_free(r.device, all);
    rig_close(&r);
}

/* The logits are those of the loss: with a cap, too. */
static void test_logits_give_the_loss(void **state)
{
    (void)state;
    struct model_config configs[] = {rig_llama(), rig_relative(MODEL_GEMMA2)};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct rig r;
        rig_open(&r, &configs[i], "ref", DTYPE_F64, SHAPE, KEEP_NOT);
        rig_fill_params(&r, 0.3);
        int64_t rows = SHAPE.batch * SHAPE.tokens, vocab = configs[i].vocab;
        double *logits = rig_block(&r, (size_t)(rows * vocab) * sizeof *logits), loss = 0;
        forward_logits(&r, logits);
        for (int64_t row = 0; row < rows; row++) {
            double sum = 0;
            for (int64_t v = 0; v < vocab; v++)
                sum += exp(logits[row * vocab + v]);
            loss += r.labels[row] < 0 ? 0 : log(sum) - logits[row * vocab + r.labels[row]];
        }
        double found = rig_eval(&r);
        if (!(fabs(found - loss) < 1e-6 * loss))
            fail_msg("the loss is %.9g, that of the logits %.9g", found, loss);
        device_free(r.device, logits);
        rig_close(&r);
    }
}

static void test_decode_agrees(void **state)
{
    (void)state;
    struct model_config configs[OTHERS + MODEL_ARCHS] = {rig_gpt2(), rig_llama(),   wide_heads(),
                                                         rig_sars(), untied_gpt2(), partial_yarn(),
                                                         longrope()};
    int count = add_relatives(configs, 7);
    for (int i = 0; i < count; i++) {
        check_decode(&configs[i], "ref", DTYPE_F64, 1e-9);
        check_decode(&configs[i], "cpu", DTYPE_F32, 1e-5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_gradients),
        cmocka_unit_test(test_llama_gradients),
        cmocka_unit_test(test_gradients_of_relatives),
        cmocka_unit_test(test_chunked_loss),
        cmocka_unit_test(test_chunk_rows),
        cmocka_unit_test(test_recompute_same_bits),
        cmocka_unit_test(test_two_parts_same_bits),
        cmocka_unit_test(test_decode_agrees),
        cmocka_unit_test(test_logits_give_the_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
