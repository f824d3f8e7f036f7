/* Exports and comparisons that fail at any allocation or write return an error and leave no files
 * and no memory behind. Also their results when nothing fails. */
#include <errno.h>
#include <math.h>
#include "base/output.h"
#include "scratch.h"
#include "train/models/model_diff.h"
#include "train/models/model_export.h"
#include "train/weights/safetensors_write.h"

static const char GOLDEN[] = "tests/train/golden/checkpoint-1"; /* an fp16 run, with masters */

static enum status export_to(struct scratch *s, const char *to, enum dtype type, int64_t most)
{
    struct export_request request = {.from = GOLDEN, .to = to, .type = type, .file_bytes = most};
    struct export_result result;
    return model_export(&s->env, &request, &result);
}

static void expect_nothing(struct scratch *s)
{
    assert_true(dir_is_empty(NULL, s->folder));
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct scratch s;
    char to[128];
    enum status st = STATUS_MEMORY;
    scratch_open(&s);
    strcpy(to, scratch_path(&s, "out"));
    for (int64_t n = 1; st != STATUS_OK; n++) {
        expect_nothing(&s);
        mem_fail_at(s.env.mem, n);
        st = export_to(&s, to, DTYPE_F32, 2000);
        mem_fail_at(s.env.mem, 0);
        assert_true(st == STATUS_OK || st == STATUS_MEMORY);
        assert_true(n < 100000);
    }
    assert_false(dir_is_empty(NULL, to));
    scratch_close(&s);
}

/* The folder is complete, or it does not exist. */
static void expect_whole_or_nothing(struct scratch *s, const char *to, enum status st)
{
    char command[256];
    struct export_request request = {
        .from = to, .to = scratch_path(s, "copy"), .keep_type = true, .file_bytes = 1 << 20};
    struct export_result result;
    if (st != STATUS_OK && !file_exists(to)) {
        expect_nothing(s);
        return;
    }
    s->env.faults = NULL;
    assert_int_equal(model_export(&s->env, &request, &result), STATUS_OK);
    assert_int_equal(result.type, DTYPE_BF16);
    snprintf(command, sizeof command, "rm -r '%s/out' '%s/copy'", s->folder, s->folder);
    assert_int_equal(system(command), 0);
    expect_nothing(s);
}

static void test_every_write_may_fail(void **state)
{
    (void)state;
    struct scratch s;
    char to[128];
    struct output_faults faults = {0};
    int failures = 0, passed = 0;
    scratch_open(&s);
    strcpy(to, scratch_path(&s, "out"));
    for (int n = 1; atomic_load(&faults.left) <= 0; n++) {
        s.env.faults = &faults;
        faults.error = n % 2 ? ENOSPC : EIO;
        atomic_store(&faults.left, n);
        enum status st = export_to(&s, to, DTYPE_BF16, 2000);
        assert_true(st == STATUS_OK || st == STATUS_IO);
        failures += st == STATUS_IO;
        passed += st == STATUS_OK;
        expect_whole_or_nothing(&s, to, st);
        log_error_clear(s.env.log);
    }
    assert_true(failures > 20);
    assert_true(passed <= 3); /* calls that create an existing folder, and the last round */
    scratch_close(&s);
}

/* --- comparing ------------------------------------------------------------------------------ */

struct heard {
    int count;
    struct diff_tensor last;
};

static void hear(void *user, const struct diff_tensor *tensor)
{
    struct heard *heard = user;
    heard->count++;
    heard->last = *tensor;
}

static void test_every_allocation_of_a_comparison_may_fail(void **state)
{
    (void)state;
    struct scratch s;
    struct heard heard = {0};
    struct diff_totals totals;
    enum status st = STATUS_MEMORY;
    scratch_open(&s);
    for (int64_t n = 1; st != STATUS_OK; n++) {
        heard = (struct heard){0};
        mem_fail_at(s.env.mem, n);
        st = model_diff(&s.env, GOLDEN, GOLDEN, hear, &heard, &totals);
        mem_fail_at(s.env.mem, 0);
        assert_true(n < 100000);
    }
    assert_true(totals.tensors > 0 && totals.tensors % 4 == 0); /* model, master and two moments */
    assert_int_equal(totals.equal, totals.tensors);
    assert_int_equal(heard.count, totals.tensors);
    scratch_close(&s);
}

struct values {
    enum dtype type;
    const void *data;
};

static enum status give(void *user, int i, int64_t first, int64_t count, void *out)
{
    const struct values *values = user;
    (void)i;
    size_t width = dtype_bytes(values->type);
    memcpy(out, (const char *)values->data + (size_t)first * width, (size_t)count * width);
    return STATUS_OK;
}

static void write_one(struct scratch *s, const char *name, const void *data, int64_t count,
                      enum dtype type)
{
    struct safetensors_entry entry = {.name = "x", .type = type, .rank = 1, .shape = {count}};
    struct safetensors_layout *layout;
    struct values values = {type, data};
    assert_int_equal(safetensors_layout_create(&s->env, &entry, 1, NULL, 0, &layout), STATUS_OK);
    assert_int_equal(safetensors_write(&s->env, scratch_path(s, name), layout, give, &values),
                     STATUS_OK);
    safetensors_layout_destroy(layout);
}

static struct diff_tensor compare(const void *a, const void *b, int64_t count, enum dtype type)
{
    struct scratch s;
    struct heard heard = {0};
    struct diff_totals totals;
    char first[128];
    scratch_open(&s);
    write_one(&s, "a.safetensors", a, count, type);
    write_one(&s, "b.safetensors", b, count, type);
    strcpy(first, scratch_path(&s, "a.safetensors"));
    assert_int_equal(
        model_diff(&s.env, first, scratch_path(&s, "b.safetensors"), hear, &heard, &totals),
        STATUS_OK);
    assert_int_equal(heard.count, 1);
    scratch_close(&s);
    return heard.last;
}

static void test_bits_and_values_are_compared(void **state)
{
    (void)state;
    const float a[] = {3, -0.0f, NAN, INFINITY, 4}, b[] = {3, 0.0f, NAN, INFINITY, 4.5f};
    struct diff_tensor t = compare(a, a, 5, DTYPE_F32);
    assert_true(diff_tensor_equal(&t) && t.first == -1);
    t = compare(a, b, 5, DTYPE_F32);
    assert_int_equal(t.differing, 2);
    assert_int_equal(t.first, 1);
    assert_true(t.largest == 0.5);
    const float plain[] = {3, 0, 4}, moved[] = {3, 0, 4.5f}, broken[] = {3, NAN, 4};
    t = compare(plain, moved, 3, DTYPE_F32);
    assert_true(t.relative_rms == 0.1 && t.a_first == 4 && t.b_first == 4.5);
    t = compare(plain, broken, 3, DTYPE_F32);
    assert_true(isinf(t.largest) && t.first == 1);

    const int64_t large[] = {1, (int64_t)1 << 60}, larger[] = {1, ((int64_t)1 << 60) + 1};
    t = compare(large, larger, 2, DTYPE_I64); /* equal as doubles */
    assert_int_equal(t.differing, 1);
    const int32_t ints[] = {-5, 7, -9}, others[] = {-5, 7, 9};
    t = compare(ints, others, 3, DTYPE_I32);
    assert_true(t.differing == 1 && t.first == 2 && t.largest == 18);
    const uint8_t bytes[] = {1, 200, 3, 4, 5}, changed[] = {1, 250, 3, 4, 5};
    t = compare(bytes, changed, 5, DTYPE_U8);
    assert_true(t.differing == 1 && t.first == 1 && t.largest == 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_every_write_may_fail),
        cmocka_unit_test(test_every_allocation_of_a_comparison_may_fail),
        cmocka_unit_test(test_bits_and_values_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
