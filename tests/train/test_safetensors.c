#include "train/scratch.h"
#include "train/weights/safetensors.h"

/* A file with this header, followed by zero bytes. */
struct sample {
    uint8_t data[1024];
    size_t bytes;
};

static struct sample make(const char *header, size_t tail)
{
    struct sample f = {{0}, 8 + strlen(header) + tail};
    uint64_t n = strlen(header);
    memcpy(f.data, &n, 8);
    memcpy(f.data + 8, header, strlen(header));
    return f;
}

static void refuse(struct scratch *s, const struct sample *f, const char *message)
{
    struct safetensors *file = NULL;
    assert_int_not_equal(safetensors_open_memory(&s->env, f->data, f->bytes, "x", &file),
                         STATUS_OK);
    scratch_expect(s, message);
    assert_null(file);
    assert_int_equal(mem_total(s->env.mem), 0);
}

static void refuse_header(struct scratch *s, const char *header, size_t tail, const char *message)
{
    struct sample f = make(header, tail);
    refuse(s, &f, message);
}

static void test_the_smallest_file_is_read(void **state)
{
    struct scratch s;
    struct safetensors *file;
    int32_t values[4] = {1, 1, 1, 1};
    (void)state;
    scratch_open(&s);
    struct sample f =
        make("{\"test\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16);
    assert_int_equal(f.data[0], 0x3c);
    assert_int_equal(safetensors_open_memory(&s.env, f.data, f.bytes, "x", &file), STATUS_OK);
    assert_int_equal(safetensors_count(file), 1);
    const struct safetensor *t = safetensors_find(file, "test");
    assert_non_null(t);
    assert_null(safetensors_find(file, "tes"));
    assert_ptr_equal(t, safetensors_at(file, 0));
    assert_int_equal(t->type, DTYPE_I32);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->count, 4);
    assert_int_equal(safetensors_read(file, t, 0, 4, DTYPE_I32, values), STATUS_OK);
    assert_int_equal(values[0] | values[1] | values[2] | values[3], 0);
    assert_int_equal(safetensors_read(file, t, 0, 4, DTYPE_F32, values), STATUS_FORMAT);
    scratch_expect(&s, "cannot be read as f32");
    safetensors_close(file);
    scratch_close(&s);
}

static void test_unaligned_ranges_are_read_and_converted(void **state)
{
    struct scratch s;
    struct safetensors *file;
    (void)state;
    scratch_open(&s);
    struct sample f = make("{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                           "\"w\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[1,13]},"
                           "\"s\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[13,15]},"
                           "\"e\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[15,15]},"
                           "\"__metadata__\":{\"format\":\"pt\"}}",
                           15);
    float values[3] = {1.5f, -2.25f, 3.0f}, out[3];
    uint16_t half[2], scalar = f32_to_bf16(0.5f);
    memcpy(f.data + f.bytes - 14, values, 12);
    memcpy(f.data + f.bytes - 2, &scalar, 2);
    const char *path = scratch_write(&s, "m", f.data, f.bytes);
    assert_int_equal(safetensors_open(&s.env, path, &file), STATUS_OK);
    assert_int_equal(safetensors_count(file), 4);
    const struct safetensor *w = safetensors_find(file, "w");
    assert_int_equal(safetensors_read(file, w, 0, 3, DTYPE_F32, out), STATUS_OK);
    assert_memory_equal(out, values, 12);
    assert_int_equal(safetensors_read(file, w, 1, 2, DTYPE_BF16, half), STATUS_OK);
    assert_int_equal(half[0], f32_to_bf16(-2.25f));
    assert_int_equal(half[1], f32_to_bf16(3.0f));
    assert_int_equal(safetensors_read(file, safetensors_find(file, "s"), 0, 1, DTYPE_F32, out),
                     STATUS_OK);
    assert_true(out[0] == 0.5f);
    assert_int_equal(safetensors_find(file, "e")->count, 0);
    assert_int_equal(safetensors_read(file, safetensors_find(file, "e"), 0, 0, DTYPE_F32, out),
                     STATUS_OK);
    safetensors_close(file);
    scratch_close(&s);
}

#define T(offsets) "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}}"

static void test_wrong_files_are_refused(void **state)
{
    struct scratch s;
    struct sample f;
    (void)state;
    scratch_open(&s);
    f = (struct sample){{0}, 7};
    refuse(&s, &f, "header too small");
    f = (struct sample){{255, 255, 255, 255, 255, 255, 255, 255}, 20};
    refuse(&s, &f, "above the limit");
    f = make("{}", 0);
    f.data[0] = 9;
    refuse(&s, &f, "does not fit");
    refuse_header(&s, " {}", 0, "begin with '{'");
    refuse_header(&s, "", 4, "begin with '{'");
    refuse_header(&s, "{\"a\":", 0, "not valid JSON");
    refuse_header(&s, "{\"a\xff\":1}", 0, "not valid JSON");
    refuse_header(&s, "{\"a\":1,\"a\":2}", 0, "duplicate");
    refuse_header(&s, "{\"a\":1}", 0, "no dtype");
    refuse_header(&s, "{\"__metadata__\":{\"k\":1}}", 0, "is not a string");
    refuse_header(&s, "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                  "F8_E4M3");
    refuse_header(&s, "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
                  "shape[0] is not a count");
    refuse_header(&s, "{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "shape");
    refuse_header(&s, T("[4,12]"), 12, "begins at byte 4");
    refuse_header(&s, T("[8,0]"), 8, "data_offsets");
    refuse_header(&s, T("[0,4]"), 4, "needs 8 bytes by its shape but has 4");
    refuse_header(&s, T("[0,8]"), 7, "truncated");
    refuse_header(&s, T("[0,8]"), 9, "9 follow");
    refuse_header(&s,
                  "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                  "\"data_offsets\":[0,0]}}",
                  0, "too large");
    refuse_header(&s,
                  "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                  "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
                  6, "begins at byte 2");
    scratch_close(&s);
}

static void test_every_allocation_may_fail(void **state)
{
    struct scratch s;
    struct safetensors *file;
    (void)state;
    scratch_open(&s);
    struct sample f = make(T("[0,8]"), 8);
    for (int n = 1; n <= 4; n++) {
        mem_fail_at(s.env.mem, n);
        assert_int_equal(safetensors_open_memory(&s.env, f.data, f.bytes, "x", &file),
                         STATUS_MEMORY);
        assert_int_equal(mem_total(s.env.mem), 0);
    }
    mem_fail_at(s.env.mem, 0);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_smallest_file_is_read),
        cmocka_unit_test(test_unaligned_ranges_are_read_and_converted),
        cmocka_unit_test(test_wrong_files_are_refused),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
