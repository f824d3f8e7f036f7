#include "train/scratch.h"
#include "train/run/tfevents.h"

static void test_crc_has_its_check_value(void **state)
{
    (void)state;
    assert_true(tfevents_crc32c("123456789", 9) == 0xe3069283u);
    assert_true(tfevents_crc32c("", 0) == 0);
}

static void test_bytes_are_exact(void **state)
{
    static const uint8_t wanted[] = {
        0x18, 0,    0,    0,    0,    0,    0,    0,    0xa3, 0x7f, 0x4b, 0x22, 0x09, 0,    0,
        0,    0x40, 0xfc, 0x54, 0xd9, 0x41, 0x1a, 0x0d, 0x62, 0x72, 0x61, 0x69, 0x6e, 0x2e, 0x45,
        0x76, 0x65, 0x6e, 0x74, 0x3a, 0x32, 0xec, 0xed, 0x8f, 0x9d, 0x20, 0,    0,    0,    0,
        0,    0,    0,    0x29, 0xed, 0xa9, 0x50, 0x09, 0,    0,    0x40, 0x40, 0xfc, 0x54, 0xd9,
        0x41, 0x10, 0x07, 0x2a, 0x13, 0x0a, 0x11, 0x0a, 0x0a, 0x74, 0x72, 0x61, 0x69, 0x6e, 0x2f,
        0x6c, 0x6f, 0x73, 0x73, 0x15, 0,    0,    0x60, 0x40, 0x2a, 0x0b, 0xcd, 0xe3};
    static const struct tfevents_scalar loss = {"train/loss", 3.5f};
    struct scratch s;
    struct tfevents *events;
    char *data;
    size_t bytes;
    (void)state;
    scratch_open(&s);
    const char *path = scratch_path(&s, "events");
    assert_int_equal(tfevents_create_file(&s.env, path, 1700000000.0, &events), STATUS_OK);
    assert_int_equal(tfevents_scalars(events, 1700000001.0, 7, &loss, 1), STATUS_OK);
    /* Still open: a reader must see the record already. */
    assert_int_equal(file_read(&s.env, path, 1000, &data, &bytes), STATUS_OK);
    assert_int_equal(bytes, sizeof wanted);
    assert_memory_equal(data, wanted, sizeof wanted);
    mem_free(&s.env, data);
    tfevents_destroy(events);
    scratch_close(&s);
}

/* Walk the frames: lengths and both checksums must be right up to the end of the file. */
static int count_records(const uint8_t *data, size_t bytes)
{
    int records = 0;
    for (size_t at = 0; at < bytes; records++) {
        uint64_t length;
        uint32_t stored, crc;
        assert_true(bytes - at >= 16);
        memcpy(&length, data + at, 8);
        memcpy(&stored, data + at + 8, 4);
        crc = tfevents_crc32c(data + at, 8);
        assert_true(stored == (crc >> 15 | crc << 17) + 0xa282ead8u);
        assert_true(length <= bytes - at - 16);
        memcpy(&stored, data + at + 12 + length, 4);
        crc = tfevents_crc32c(data + at + 12, length);
        assert_true(stored == (crc >> 15 | crc << 17) + 0xa282ead8u);
        at += 16 + length;
    }
    return records;
}

static void test_every_writer_has_its_own_file(void **state)
{
    struct scratch s;
    struct tfevents *one, *two;
    struct path_list list;
    struct tfevents_scalar scalars[] = {{"train/loss", 1}, {"train/lr", 2}};
    char long_text[5000];
    (void)state;
    scratch_open(&s);
    memset(long_text, 'x', sizeof long_text);
    assert_int_equal(tfevents_create(&s.env, s.folder, &one), STATUS_OK);
    assert_int_equal(tfevents_create(&s.env, s.folder, &two), STATUS_OK);
    assert_int_equal(tfevents_scalars(two, 1, 1, scalars, 2), STATUS_OK);
    assert_int_equal(tfevents_text(two, 1, 1, "samples/text_summary", long_text, 5000), STATUS_OK);
    int64_t before = mem_allocation_count(s.env.mem);
    assert_int_equal(tfevents_scalars(two, 2, 2, scalars, 2), STATUS_OK);
    assert_int_equal(mem_allocation_count(s.env.mem), before);
    tfevents_destroy(one);
    tfevents_destroy(two);
    assert_int_equal(path_glob(&s.env, scratch_path(&s, "events.out.tfevents.*"), &list),
                     STATUS_OK);
    assert_int_equal(list.count, 2);
    int records = 0;
    for (int i = 0; i < 2; i++) {
        struct file_map map;
        assert_int_equal(file_map_open(&s.env, list.paths[i], &map), STATUS_OK);
        records += count_records(map.data, map.bytes);
        file_map_close(&map);
    }
    assert_int_equal(records, 5);
    path_list_free(&s.env, &list);
    scratch_close(&s);
}

static void test_every_allocation_may_fail(void **state)
{
    struct scratch s;
    struct tfevents *events;
    (void)state;
    scratch_open(&s);
    for (int n = 1; n <= 3; n++) {
        mem_fail_at(s.env.mem, n);
        assert_int_equal(tfevents_create(&s.env, s.folder, &events), STATUS_MEMORY);
        assert_int_equal(mem_total(s.env.mem), 0);
    }
    mem_fail_at(s.env.mem, 0);
    assert_int_equal(tfevents_create(&s.env, "/nonexistent", &events), STATUS_IO);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc_has_its_check_value),
        cmocka_unit_test(test_bytes_are_exact),
        cmocka_unit_test(test_every_writer_has_its_own_file),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
