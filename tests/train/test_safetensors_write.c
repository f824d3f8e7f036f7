#include <unistd.h>
#include "train/scratch.h"
#include "train/weights/safetensors_write.h"

#define BIG 2500000 /* elements: more than one buffer */

static const struct safetensors_entry ENTRIES[] = {
    {.name = "z", .type = DTYPE_F32, .rank = 2, .shape = {2, 3}},
    {.name = "half", .type = DTYPE_BF16, .rank = 1, .shape = {3}},
    {.name = "a \"quoted\" \xc3\xa9", .type = DTYPE_F32, .rank = 1, .shape = {BIG}},
    {.name = "ids", .type = DTYPE_I64, .rank = 0},
    {.name = "none", .type = DTYPE_F32, .rank = 1, .shape = {0}},
};
#define COUNT ((int)(sizeof ENTRIES / sizeof *ENTRIES))

static const struct safetensors_pair METADATA[] = {{"sifr.step", "12"}};

/* Element e of entry i is 100 i + e, in the entry's type. */
static enum status fill(void *user, int i, int64_t first, int64_t count, void *out)
{
    int *calls = user;
    for (int64_t e = 0; e < count; e++) {
        float value = (float)(100 * i) + (float)(first + e);
        if (ENTRIES[i].type == DTYPE_F32)
            ((float *)out)[e] = value;
        else if (ENTRIES[i].type == DTYPE_BF16)
            ((uint16_t *)out)[e] = f32_to_bf16(value);
        else
            ((int64_t *)out)[e] = (int64_t)value;
    }
    ++*calls;
    return STATUS_OK;
}

static enum status refuse_to_fill(void *user, int i, int64_t first, int64_t count, void *out)
{
    (void)user, (void)i, (void)first, (void)count, (void)out;
    return STATUS_DEVICE;
}

static struct safetensors_layout *lay_out(struct scratch *s)
{
    struct safetensors_layout *layout;
    assert_int_equal(safetensors_layout_create(&s->env, ENTRIES, COUNT, METADATA, 1, &layout),
                     STATUS_OK);
    return layout;
}

static void test_written_files_read_back(void **state)
{
    struct scratch s;
    struct safetensors *file;
    int calls = 0;
    float *values;
    size_t header_bytes;
    (void)state;
    scratch_open(&s);
    struct safetensors_layout *layout = lay_out(&s);
    const char *path = scratch_path(&s, "m.safetensors");
    assert_int_equal(safetensors_write(&s.env, path, layout, fill, &calls), STATUS_OK);
    assert_int_equal(calls, 1 + 1 + 3 + 1);
    assert_int_equal(safetensors_open(&s.env, path, &file), STATUS_OK);
    const char *header = safetensors_layout_header(layout, &header_bytes);
    assert_non_null(strstr(header + 8, "{\"format\":\"pt\",\"sifr.step\":\"12\"}"));
    assert_int_equal(safetensors_count(file), COUNT);
    assert_int_equal(mem_alloc_array(&s.env, MEM_OTHER, "t", BIG, 4, &values), STATUS_OK);
    for (int i = 0; i < COUNT; i++) {
        const struct safetensor *t = safetensors_find(file, ENTRIES[i].name);
        assert_non_null(t);
        assert_int_equal(t->begin, safetensors_layout_begin(layout, i));
        assert_int_equal(t->begin % dtype_bytes(t->type), 0);
        if (t->type == DTYPE_I64)
            continue;
        assert_int_equal(safetensors_read(file, t, 0, t->count, DTYPE_F32, values), STATUS_OK);
        for (int64_t e = 0; e < t->count; e++) {
            float wanted = (float)(100 * i) + (float)e;
            if (t->type == DTYPE_BF16)
                wanted = bf16_to_f32(f32_to_bf16(wanted));
            assert_true(values[e] == wanted);
        }
    }
    mem_free(&s.env, values);
    safetensors_close(file);
    safetensors_layout_destroy(layout);
    scratch_close(&s);
}

/* As the reference implementation writes it: widest type first, then by name; the header padded to
 * 8 bytes. */
static void test_the_header_is_that_of_the_reference(void **state)
{
    static const char wanted[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]},"
        "\"0\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[12,14]}}";
    static const struct safetensors_entry entries[] = {
        {.name = "0", .type = DTYPE_F16, .rank = 1, .shape = {1}},
        {.name = "b", .type = DTYPE_F32, .rank = 1, .shape = {2}},
        {.name = "a", .type = DTYPE_F32, .rank = 1, .shape = {1}},
    };
    struct scratch s;
    struct safetensors_layout *layout;
    size_t bytes;
    uint64_t json_bytes;
    (void)state;
    scratch_open(&s);
    assert_int_equal(safetensors_layout_create(&s.env, entries, 3, NULL, 0, &layout), STATUS_OK);
    const char *header = safetensors_layout_header(layout, &bytes);
    memcpy(&json_bytes, header, 8);
    assert_int_equal(json_bytes + 8, bytes);
    assert_int_equal(bytes % 8, 0);
    assert_memory_equal(header + 8, wanted, strlen(wanted));
    for (size_t i = 8 + strlen(wanted); i < bytes; i++)
        assert_int_equal(header[i], ' ');
    assert_int_equal(safetensors_layout_file_bytes(layout), bytes + 14);
    safetensors_layout_destroy(layout);
    scratch_close(&s);
}

static void test_a_failed_write_keeps_the_old_file(void **state)
{
    struct scratch s;
    char *text;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    struct safetensors_layout *layout = lay_out(&s);
    const char *path = scratch_text(&s, "m", "old");
    assert_int_equal(safetensors_write(&s.env, path, layout, refuse_to_fill, NULL), STATUS_DEVICE);
    assert_int_equal(file_read(&s.env, path, 100, &text, &bytes), STATUS_OK);
    assert_string_equal(text, "old");
    mem_free(&s.env, text);
    assert_int_equal(unlink(path), 0);
    assert_true(dir_is_empty(NULL, s.folder)); /* the temporary file is gone */
    safetensors_layout_destroy(layout);
    scratch_close(&s);
}

static void test_a_repeated_name_is_refused(void **state)
{
    static const struct safetensors_entry entries[] = {
        {.name = "a", .type = DTYPE_F16, .rank = 1, .shape = {1}},
        {.name = "b", .type = DTYPE_F32, .rank = 1, .shape = {2}},
        {.name = "a", .type = DTYPE_F32, .rank = 1, .shape = {1}},
    };
    struct scratch s;
    struct safetensors_layout *layout;
    (void)state;
    scratch_open(&s);
    assert_int_equal(safetensors_layout_create(&s.env, entries, 3, NULL, 0, &layout),
                     STATUS_FORMAT);
    scratch_expect(&s, "two tensors are called 'a'");
    scratch_close(&s);
}

static void test_every_allocation_may_fail(void **state)
{
    struct scratch s;
    struct safetensors_layout *layout;
    (void)state;
    scratch_open(&s);
    for (int n = 1; n <= 4; n++) {
        mem_fail_at(s.env.mem, n);
        assert_int_equal(safetensors_layout_create(&s.env, ENTRIES, COUNT, METADATA, 1, &layout),
                         STATUS_MEMORY);
        assert_int_equal(mem_total(s.env.mem), 0);
    }
    mem_fail_at(s.env.mem, 0);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_files_read_back),
        cmocka_unit_test(test_the_header_is_that_of_the_reference),
        cmocka_unit_test(test_a_failed_write_keeps_the_old_file),
        cmocka_unit_test(test_a_repeated_name_is_refused),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
