/* test_ops_optimizer_bits -- the bits of updates and of block sums: those of the reference, in the
 * cpu back end with one and two threads, and on a GPU with the argument `cuda`; and the properties
 * of 8-bit codes.
 *
 * Values are of every kind: of usual size, tiny, subnormal, huge, zero, powers of two, infinite,
 * and NaN where that does not end in a code. Segments have odd lengths and begin anywhere. A NaN
 * equals any NaN.
 */
#include <float.h>
#include <math.h>
#include "base/rng.h"
#include "gpu.h"
#include "ops/cpu/cpu_code8.h"
#include "ops/op_rig.h"

/* --- values --------------------------------------------------------------------------------- */

static float float_of(uint64_t sign, uint64_t field, uint64_t mantissa)
{
    return of_bits((uint32_t)((sign & 1) << 31 | field << 23 | (mantissa & 0x7fffff)));
}

/* Half of the blocks of 64 have one kind of values only. */
static float value_of_any_kind(struct rng rng, int64_t i, bool with_nan)
{
    uint64_t block = rng_bits(rng, (uint64_t)i / OPS_BLOCK + (UINT64_C(1) << 40));
    uint64_t bits = rng_bits(rng, (uint64_t)i), sign = bits >> 63, mantissa = bits >> 32;
    uint64_t spread = bits >> 8 & 0xff;
    switch ((block & 8 ? block : bits) & 7) {
    case 0: return float_of(sign, 1 + spread % 254, mantissa);
    case 1: return float_of(sign, 1 + spread % 40, mantissa);
    case 2: return float_of(sign, 0, mantissa >> spread % 23);
    case 3: return float_of(sign, 230 + spread % 25, mantissa);
    case 4: return float_of(sign, 0, 0);
    case 5: return float_of(sign, 1 + spread % 254, 0);
    case 6:
        if (spread < 4)
            return spread == 0 && with_nan ? NAN : float_of(sign, 255, 0);
        /* fall through */
    default: return float_of(sign, 110 + spread % 20, mantissa);
    }
}

static bool same_value(const void *a, const void *b, enum dtype type, int64_t i)
{
    size_t width = dtype_bytes(type), at = (size_t)i * width;
    double x, y;
    if (memcmp((const char *)a + at, (const char *)b + at, width) == 0)
        return true;
    if (type == DTYPE_U8)
        return false;
    dtype_convert(&x, DTYPE_F64, (const char *)a + at, type, 1);
    dtype_convert(&y, DTYPE_F64, (const char *)b + at, type, 1);
    return isnan(x) && isnan(y);
}

/* --- updates -------------------------------------------------------------------------------- */

enum { PARAM, COPY, GRAD, M, V, M_SCALE, V_SCALE, ARRAYS };
enum { SEGMENTS = 6, PER_RULE = 7 };
static const char *const array_names[ARRAYS] = {"param", "copy",    "grad",   "m",
                                                "v",     "m_scale", "v_scale"};
static const int64_t lengths[SEGMENTS] = {1, 63, 4096, 100003, 64, 50021};
static const int skips[SEGMENTS] = {63, 5, 0, 17, 1, 0};
static const struct update_location locations[SEGMENTS] = {
    {1, 0, INT64_MAX, 0, 0, 0}, {2, 3, 101, 203, 5, 0}, {3, 1020, INT64_MAX, 0, 0, 0},
    {4, 7, 4099, 9001, 2, 3},   {5, 6, 1, 3, 0, 0},     {6, (int64_t)1 << 33, INT64_MAX, 0, 1, 0},
};

struct setting {
    enum update_rule rule;
    enum dtype from, to;
    bool copies, random, momentum, nesterov;
    struct step_scalars scalars;
};

/* The arrays of all segments, one after the other; an array that a rule lacks has no elements. */
struct image {
    enum dtype types[ARRAYS];
    int64_t counts[ARRAYS];
    void *data[ARRAYS];
};

static int64_t blocks_of(int segment)
{
    return ceil_div(lengths[segment] + skips[segment], OPS_BLOCK);
}

static struct image image_create(const struct setting *s)
{
    int64_t elements = 0, blocks = 0;
    for (int i = 0; i < SEGMENTS; i++) {
        elements += lengths[i];
        blocks += blocks_of(i);
    }
    bool adam = s->rule == UPDATE_ADAMW || s->rule == UPDATE_ADAMW8;
    bool codes = s->rule == UPDATE_ADAMW8, m = adam || s->momentum || s->rule == UPDATE_MUON;
    enum dtype moments = codes ? DTYPE_U8 : DTYPE_F32;
    struct image image = {
        .types = {DTYPE_F32, s->to, s->from, moments, moments, DTYPE_U8, DTYPE_U8},
        .counts = {s->rule == UPDATE_MUON ? 0 : elements, s->copies ? elements : 0, elements,
                   m ? elements : 0, adam ? elements : 0, codes ? blocks : 0, codes ? blocks : 0}};
    for (int a = 0; a < ARRAYS; a++)
        assert_non_null(image.data[a] = calloc((size_t)image.counts[a] + 1, sizeof(double)));
    return image;
}

static void image_destroy(struct image *image)
{
    for (int a = 0; a < ARRAYS; a++)
        free(image->data[a]);
}

static void image_draw(struct image *image, bool with_nan, int seed)
{
    for (int a = 0; a < ARRAYS; a++) {
        struct rng rng = rng_stream((uint64_t)seed, array_names[a]);
        for (int64_t i = 0; i < image->counts[a]; i++) {
            float x = value_of_any_kind(rng, i, with_nan && a == GRAD);
            uint64_t byte = rng_below(rng, (uint64_t)i, a == M_SCALE || a == V_SCALE ? 255 : 256);
            if (image->types[a] == DTYPE_U8)
                ((uint8_t *)image->data[a])[i] = (uint8_t)byte;
            else {
                x = a == V ? fabsf(x) : x;
                dtype_convert((char *)image->data[a] + (size_t)i * dtype_bytes(image->types[a]),
                              image->types[a], &x, DTYPE_F32, 1);
            }
        }
    }
}

static void fill_segments(const struct image *image, char *const at[ARRAYS],
                          struct update_segment *segments)
{
    int64_t element = 0, block = 0;
    for (int i = 0; i < SEGMENTS; i++) {
        void *start[ARRAYS];
        for (int a = 0; a < ARRAYS; a++) {
            int64_t first = a == M_SCALE || a == V_SCALE ? block : element;
            start[a] =
                image->counts[a] > 0 ? at[a] + (size_t)first * dtype_bytes(image->types[a]) : NULL;
        }
        segments[i] = (struct update_segment){.count = lengths[i],
                                              .param = start[PARAM],
                                              .copy = start[COPY],
                                              .copy_type = image->types[COPY],
                                              .grad_type = image->types[GRAD],
                                              .grad = start[GRAD],
                                              .m = start[M],
                                              .v = start[V],
                                              .m_scale = start[M_SCALE],
                                              .v_scale = start[V_SCALE],
                                              .first = i % 2 == 0 ? 0 : ((int64_t)i << 32) - 1000,
                                              .key = 0x9e3779b9u * (uint32_t)i,
                                              .skip = skips[i],
                                              .lr_mul = 1.0f / (float)(i + 1),
                                              .decay = i % 3 == 0 ? 0.1f : 0,
                                              .scale = 0.3f * (float)i};
        element += lengths[i];
        block += blocks_of(i);
    }
}

/* A copy in device memory. */
static void *to_device(struct rig *rig, const void *from, size_t bytes)
{
    void *at;
    assert_ok(device_alloc(rig->device, MEM_OTHER, "test", bytes + 1, &at));
    device_copy(rig->stream, at, from, bytes);
    assert_ok(stream_sync(rig->stream));
    return at;
}

/* Updates the image on the rig's device. */
static void run_update(struct rig *rig, const struct setting *s, struct image *image)
{
    char *at[ARRAYS];
    struct update_segment segments[SEGMENTS];
    for (int a = 0; a < ARRAYS; a++)
        at[a] =
            to_device(rig, image->data[a], (size_t)image->counts[a] * dtype_bytes(image->types[a]));
    fill_segments(image, at, segments);
    void *table = to_device(rig, segments, sizeof segments);
    void *places = to_device(rig, locations, sizeof locations);
    void *scalars = to_device(rig, &s->scalars, sizeof s->scalars);
    struct update update = {.rule = s->rule,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .eps = 1e-8,
                            .nesterov = s->nesterov,
                            .locations = s->random ? places : NULL,
                            .number = ((int64_t)1 << 32) + 12345};
    ops_update(rig->ops, rig->stream, &update, scalars, table, SEGMENTS);
    for (int a = 0; a < ARRAYS; a++) {
        device_copy(rig->stream, image->data[a], at[a],
                    (size_t)image->counts[a] * dtype_bytes(image->types[a]));
        assert_ok(stream_sync(rig->stream));
        device_free(rig->device, at[a]);
    }
    device_free(rig->device, table);
    device_free(rig->device, places);
    device_free(rig->device, scalars);
}

static void compare_images(const struct image *right, const struct image *found,
                           const struct setting *s, const char *backend)
{
    for (int a = 0; a < ARRAYS; a++)
        for (int64_t i = 0; i < right->counts[a]; i++)
            if (!same_value(right->data[a], found->data[a], right->types[a], i))
                fail_msg("%s, %s (gradient %s, copy %s%s%s%s): %s[%lld] has other bits than ref's",
                         backend, update_word(s->rule), dtype_name(s->from), dtype_name(s->to),
                         s->random ? " at random" : "", s->momentum ? ", momentum" : "",
                         s->nesterov ? ", nesterov" : "", array_names[a], (long long)i);
}

static const struct subject {
    const char *backend;
    int threads;
} host[] = {{"cpu", 1}, {"cpu", 2}}, gpu[] = {{"cuda", 1}};
static const struct subject *subjects = host;
static int subject_count = 2;

static void check_setting(struct rig *reference, struct rig *rigs, const struct setting *s,
                          int seed)
{
    struct image right = image_create(s);
    image_draw(&right, s->rule != UPDATE_ADAMW8, seed);
    run_update(reference, s, &right);
    for (int k = 0; k < subject_count; k++) {
        struct image found = image_create(s);
        image_draw(&found, s->rule != UPDATE_ADAMW8, seed);
        run_update(&rigs[k], s, &found);
        compare_images(&right, &found, s, subjects[k].backend);
        image_destroy(&found);
    }
    image_destroy(&right);
}

/* A rule with all types and with scalars of several sizes: more than a million values. */
static void check_rule(struct setting s)
{
    static const struct {
        enum dtype from, to;
        bool copies, random;
    } types[PER_RULE] = {
        {DTYPE_F32, DTYPE_F32, false, false}, {DTYPE_F32, DTYPE_BF16, true, false},
        {DTYPE_BF16, DTYPE_BF16, true, true}, {DTYPE_F16, DTYPE_F16, true, false},
        {DTYPE_F32, DTYPE_F16, true, true},   {DTYPE_BF16, DTYPE_F32, true, false},
        {DTYPE_F16, DTYPE_BF16, true, true},
    };
    static const struct step_scalars scalars[] = {
        {1, 1e-3f, 0.271f, 0.002997001f, 1},
        {1, 3e-4f, 1, 0.9f, 0x1p-16f},
        {1, 0.1f, 1, 1, 0.7f},
        {1, 1e-3f, 0.1f, 1e-6f, 1e3f},
        {1, 1e-20f, 0.9999999f, 0.5f, 0x1p20f},
    };
    struct rig reference, rigs[2];
    rig_open(&reference, "ref", DTYPE_F32, 1);
    for (int k = 0; k < subject_count; k++)
        rig_open(&rigs[k], subjects[k].backend, DTYPE_F32, subjects[k].threads);
    for (int i = 0; i < PER_RULE; i++) {
        s.from = types[i].from;
        s.to = types[i].to;
        s.copies = types[i].copies || s.rule == UPDATE_MUON;
        s.random = types[i].random;
        s.scalars = scalars[i % (int)(sizeof scalars / sizeof *scalars)];
        check_setting(&reference, rigs, &s, i);
    }
    for (int k = 0; k < subject_count; k++)
        rig_close(&rigs[k]);
    rig_close(&reference);
}

static void test_adamw(void **state)
{
    (void)state;
    check_rule((struct setting){.rule = UPDATE_ADAMW});
}

static void test_adamw8(void **state)
{
    (void)state;
    check_rule((struct setting){.rule = UPDATE_ADAMW8});
}

static void test_sgd(void **state)
{
    (void)state;
    check_rule((struct setting){.rule = UPDATE_SGD});
    check_rule((struct setting){.rule = UPDATE_SGD, .momentum = true});
    check_rule((struct setting){.rule = UPDATE_SGD, .momentum = true, .nesterov = true});
}

static void test_muon(void **state)
{
    (void)state;
    check_rule((struct setting){.rule = UPDATE_MUON});
    check_rule((struct setting){.rule = UPDATE_MUON, .nesterov = true});
}

static void test_apply(void **state)
{
    (void)state;
    check_rule((struct setting){.rule = UPDATE_APPLY});
}

/* --- sums of squares ------------------------------------------------------------------------ */

enum { SQUARES = 350011 };

static double *sums_of(struct rig *rig, const void *x, enum dtype type)
{
    size_t blocks = (size_t)ceil_div(SQUARES, OPS_BLOCK) + 1;
    double *found = calloc(blocks, sizeof *found);
    assert_non_null(found);
    char *at = to_device(rig, x, SQUARES * dtype_bytes(type));
    double *sums = to_device(rig, found, blocks * sizeof *found);
    /* The second range begins at no multiple of a vector. */
    const struct square_range ranges[] = {{at, 131, sums},
                                          {at + 131 * dtype_bytes(type), SQUARES - 131, sums + 3}};
    ops_square_sums(rig->ops, rig->stream, type, ranges, 2);
    device_copy(rig->stream, found, sums, blocks * sizeof *found);
    assert_ok(stream_sync(rig->stream));
    device_free(rig->device, at);
    device_free(rig->device, sums);
    return found;
}

static void test_square_sums(void **state)
{
    (void)state;
    float *x = malloc(SQUARES * sizeof *x);
    void *narrow = malloc(SQUARES * sizeof *x);
    struct rig reference, rig;
    assert_true(x && narrow);
    for (int64_t i = 0; i < SQUARES; i++)
        x[i] = value_of_any_kind(rng_stream(5, "squares"), i, true);
    rig_open(&reference, "ref", DTYPE_F32, 1);
    for (int t = 0; t < 3; t++) {
        const enum dtype type = (enum dtype[]){DTYPE_F32, DTYPE_BF16, DTYPE_F16}[t];
        dtype_convert(narrow, type, x, DTYPE_F32, SQUARES);
        double *right = sums_of(&reference, narrow, type);
        for (int k = 0; k < subject_count; k++) {
            rig_open(&rig, subjects[k].backend, DTYPE_F32, subjects[k].threads);
            double *found = sums_of(&rig, narrow, type);
            for (int64_t i = 0; i < ceil_div(SQUARES, OPS_BLOCK) + 1; i++)
                if (!same_value(right, found, DTYPE_F64, i))
                    fail_msg("%s, %s: sum %lld has other bits than ref's", subjects[k].backend,
                             dtype_name(type), (long long)i);
            free(found);
            rig_close(&rig);
        }
        free(right);
    }
    rig_close(&reference);
    free(x);
    free(narrow);
}

/* --- codes ---------------------------------------------------------------------------------- */

static const int tops[] = {CODE8_TOP_M, CODE8_TOP_V};

/* Every code of every scale: what is decoded is encoded again without loss and grows with the
 * code. */
static void test_codes_and_back(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int scale = 0; scale < 255; scale++)
            for (uint32_t code = 0, last = 0; code < (uint32_t)(tops[t] + 1) << 4; code++) {
                uint32_t bits = code8_decode(code, (uint8_t)scale, tops[t]);
                float found = cpu_code8_decode(code, cpu_code8_unit((uint8_t)scale), tops[t]);
                assert_int_equal(bits_of(found), bits);
                assert_true(bits < 0x7f800000u);
                assert_int_equal(code8_encode(bits, (uint8_t)scale, tops[t], -1),
                                 scale > 0 ? code : 0);
                assert_true(code == 0 || scale == 0 || bits > last);
                last = bits;
            }
}

/* The largest numbers stay finite, and so do infinity and NaN. */
static void test_codes_of_the_largest(void **state)
{
    (void)state;
    const float large[] = {FLT_MAX, INFINITY, NAN, FLT_MAX / 2, -INFINITY};
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
            uint32_t size = code8_magnitude(bits_of(large[i]));
            uint8_t scale = code8_scale(size);
            uint32_t code = code8_encode(size, scale, tops[t], t == 1 ? 0xffffff : -1);
            float back = of_bits(code8_decode(code, scale, tops[t]));
            assert_true(isfinite(back) && back > 1e38f);
        }
}

/* The cpu's forms of the codes have the bits of ops_code8.h for this magnitude and scale. */
static void check_forms(uint32_t magnitude, uint8_t scale, uint32_t random)
{
    float inverse = cpu_code8_inverse(scale);
    uint32_t m = code8_encode(magnitude, scale, CODE8_TOP_M, -1);
    uint32_t v = code8_encode(magnitude, scale, CODE8_TOP_V, (int32_t)random);
    v = v == 0 && magnitude > 0 ? 1 : v;
    if (cpu_code8_nearest(magnitude, inverse, CODE8_TOP_M) != m ||
        cpu_code8_root(magnitude, inverse, random) != v)
        fail_msg("magnitude %08x, scale %d, random %06x: other code than in ops_code8.h",
                 (unsigned)magnitude, scale, (unsigned)random);
}

static uint32_t random_of(uint32_t x)
{
    return (uint32_t)code8_random(7, x, 9);
}

/* Every magnitude that can have a code in a block of this scale, and every subnormal one with the
 * scales that make their codes normal. */
static void test_forms_on_all_magnitudes(void **state)
{
    (void)state;
    const uint8_t scale = 127;
    for (uint32_t bits = (scale - 34u) << 23; bits < (scale + 2u) << 23; bits++)
        check_forms(bits, scale, random_of(bits));
    for (uint32_t bits = 0; bits < 1u << 23; bits += 3)
        for (uint8_t low = 1; low < 20; low += 3)
            check_forms(bits, low, random_of(bits));
}

/* Every scale and exponent, at and around the points where a code changes. */
static void test_forms_on_all_scales(void **state)
{
    (void)state;
    static const uint32_t randoms[] = {0, 1, 0x7fffff, 0x800000, 0xffffff};
    for (int scale = 1; scale < 255; scale++)
        for (uint32_t field = 0; field < 255; field++)
            for (uint32_t step = 0; step < 32; step++)
                for (int near = -1; near <= 1; near++) {
                    uint32_t bits = (field << 23) + step * CODE8_HALF + (uint32_t)near;
                    if (bits <= CODE8_LARGEST)
                        check_forms(bits, (uint8_t)scale, randoms[(field + step) % 5]);
                }
}

/* A v above 0 never becomes 0, however small it is beside the others of its block. */
static void test_roots_above_zero(void **state)
{
    (void)state;
    for (int scale = 1; scale < 255; scale++)
        for (uint32_t bits = 1; bits < 0x7f800000u; bits += 0x7ffff)
            assert_true(cpu_code8_root(bits, cpu_code8_inverse((uint8_t)scale), 0) > 0);
    assert_int_equal(cpu_code8_root(0, cpu_code8_inverse(1), 0xffffff), 0);
}

/* The mean of codes rounded at random is the number itself, within four standard deviations. */
static void test_mean_of_roots(void **state)
{
    (void)state;
    enum { DRAWS = 1 << 16 };
    const uint8_t scale = 127;
    const float numbers[] = {1.01f,   1.499f,     0.77f,      0.1f,
                             0.0123f, 0x1.8p-15f, 0x1.1p-17f, 0x1.fp-18f};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double sum = 0, squares = 0;
        for (uint32_t k = 0; k < DRAWS; k++) {
            int32_t random = code8_random((uint32_t)i, k, 11);
            uint32_t code = code8_encode(bits_of(numbers[i]), scale, CODE8_TOP_V, random);
            double error =
                (double)of_bits(code8_decode(code, scale, CODE8_TOP_V)) - (double)numbers[i];
            sum += error;
            squares += error * error;
        }
        double deviation = sqrt(squares / DRAWS), mean = sum / DRAWS;
        if (!(fabs(mean) <= 4 * deviation / sqrt(DRAWS)))
            fail_msg("%g: the mean is off by %g, the deviation of a code is %g", (double)numbers[i],
                     mean, deviation);
    }
}

int main(int count, char **words)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw), cmocka_unit_test(test_adamw8),
        cmocka_unit_test(test_sgd),   cmocka_unit_test(test_muon),
        cmocka_unit_test(test_apply), cmocka_unit_test(test_square_sums),
    };
    const struct CMUnitTest codes[] = {
        cmocka_unit_test(test_codes_and_back),          cmocka_unit_test(test_codes_of_the_largest),
        cmocka_unit_test(test_forms_on_all_magnitudes), cmocka_unit_test(test_forms_on_all_scales),
        cmocka_unit_test(test_roots_above_zero),        cmocka_unit_test(test_mean_of_roots),
    };
    if (count > 1 && strcmp(words[1], "cuda") == 0) {
        if (test_missing("cuda"))
            return 77;
        subjects = gpu;
        subject_count = 1;
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL) + cmocka_run_group_tests(codes, NULL, NULL);
}
