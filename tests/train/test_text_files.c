#include "train/scratch.h"
#include "train/data/text_files.h"

static size_t cut_of(struct scratch *s, const char *text, double split, bool whole_lines)
{
    struct text_files files;
    const char *path = scratch_text(s, "one", text);
    assert_int_equal(text_files_open(&s->env, path, split, whole_lines, &files), STATUS_OK);
    assert_int_equal(files.count, 1);
    size_t cut = files.files[0].cut;
    text_files_close(&s->env, &files);
    return cut;
}

static void test_text_is_cut_after_a_line(void **state)
{
    struct scratch s;
    (void)state;
    scratch_open(&s);
    assert_int_equal(cut_of(&s, "aaaa\nbbbb\ncccc\ndddd\n", 0, false), 20);
    assert_int_equal(cut_of(&s, "aaaa\nbbbb\ncccc\ndddd\n", 0.25, false), 15);
    assert_int_equal(cut_of(&s, "aaaa\nbbbb\ncccc\ndddd\n", 0.40, false), 15);
    assert_int_equal(cut_of(&s, "aaaa\nbbbb\ncccc\ndddd\n", 0.5, true), 10);
    scratch_close(&s);
}

static void test_text_without_lines_is_cut_between_characters(void **state)
{
    struct scratch s;
    (void)state;
    scratch_open(&s);
    assert_int_equal(cut_of(&s, "abcdefghij", 0.5, false), 5);
    assert_int_equal(cut_of(&s, "abcdefghij", 0.5, true), 10);
    assert_int_equal(cut_of(&s, "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 0.5, false), 6);
    scratch_close(&s);
}

static void test_the_end_of_all_files_together_is_cut(void **state)
{
    struct scratch s;
    struct text_files files;
    (void)state;
    scratch_open(&s);
    scratch_text(&s, "1.txt", "aaaaaaaa\nb\n");
    scratch_text(&s, "2.txt", "");
    scratch_text(&s, "3.txt", "c\nd\ne\nf\n");
    scratch_text(&s, "4.txt", "g\n");
    assert_int_equal(text_files_open(&s.env, scratch_path(&s, "*.txt"), 0.3, false, &files),
                     STATUS_OK);
    assert_int_equal(files.count, 4);
    assert_int_equal(files.bytes, 21);
    assert_int_equal(files.files[0].cut, 11);
    assert_int_equal(files.files[2].cut, 4);
    assert_int_equal(files.files[3].cut, 0);
    text_files_close(&s.env, &files);
    scratch_close(&s);
}

static void test_empty_data_is_refused(void **state)
{
    struct scratch s;
    struct text_files files;
    (void)state;
    scratch_open(&s);
    const char *path = scratch_text(&s, "empty", "");
    assert_int_equal(text_files_open(&s.env, path, 0, false, &files), STATUS_FORMAT);
    scratch_expect(&s, "is empty");
    assert_int_equal(text_files_open(&s.env, scratch_path(&s, "none"), 0, false, &files),
                     STATUS_IO);
    scratch_expect(&s, "none");
    scratch_close(&s);
}

static void test_packed_files_are_refused(void **state)
{
    static const struct {
        size_t at;
        const char *head, *message;
    } cases[] = {
        {0, "\x1f\x8b\x08", "gzip"},
        {0, "\x28\xb5\x2f\xfd", "zstd"},
        {0, "\xfd\x37zXZ", "xz"},
        {0, "BZh91AY&SY", "bzip2"},
        {0, "\x04\x22\x4d\x18", "lz4"},
        {0, "PK\3\4", "zip"},
        {0, "7z\xbc\xaf\x27\x1c", "7z"},
        {257, "ustar", "a tar archive, and is not read as text; unpack it first (tar xf)"},
        {257, "ustar  ", "a tar archive"},
        {0, "!<arch>\n", "ar archive"},
        {0, "PAR1\x15", "Parquet"},
        {0, "ARROW1", "Arrow"},
        {0, "%PDF-1.7", "PDF"},
        {0, "\xff\xfe", "UTF-32, and is not read as text; convert it first (iconv -f UTF-32"},
        {2, "\xfe\xff", "UTF-32"},
        {0, "\xff\xfex",
         "UTF-16, and is not read as text; convert it first (iconv -f UTF-16 -t UTF-8)"},
        {0, "\xfe\xff", "UTF-16"},
        {0, "\x89PNG\r\n\x1a\n", "an image (PNG), and is not read as text; leave it out"},
        {0, "\xff\xd8\xff\xe0", "an image (JPEG)"},
        {8, "{\"__metadata__\"", "a safetensors file"},
        {0, "\x88\xd8\x34\x01", "token shard"},
    };
    struct scratch s;
    struct text_files files;
    (void)state;
    scratch_open(&s);
    scratch_text(&s, "1.txt", "text\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char bytes[512] = "";
        strcpy(bytes + cases[i].at, cases[i].head);
        scratch_write(&s, "2.txt", bytes, sizeof bytes);
        assert_int_equal(text_files_open(&s.env, scratch_path(&s, "*.txt"), 0, false, &files),
                         STATUS_FORMAT);
        scratch_expect(&s, cases[i].message);
    }
    /* text that begins like a packed format is text */
    static const char *const texts[] = {"PAR1\n", "BZh9", "PK", "7z is a format", "ARROW1", "\x1f"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cut_of(&s, texts[i], 0, false);
    char words[300];
    memset(words, 'a', sizeof words);
    memcpy(words + 257, "ustar is a word", 15);
    words[sizeof words - 1] = '\0';
    cut_of(&s, words, 0, false);
    scratch_close(&s);
}

static void count_warnings(void *user, enum log_level level, const char *line)
{
    int *count = user;
    *count += level == LOG_WARN && strstr(line, "2.dat' and 1 more have NUL bytes in their first");
}

/* Such files suit a model of bytes, but hardly one of text. */
static void test_nul_bytes_are_reported_once(void **state)
{
    struct scratch s;
    struct env env;
    struct text_files files;
    int warnings = 0;
    (void)state;
    scratch_open(&s);
    assert_int_equal(env_create(&env, count_warnings, &warnings, LOG_WARN, 1), STATUS_OK);
    scratch_text(&s, "1.dat", "text\n");
    scratch_write(&s, "2.dat", "a\0b", 3);
    scratch_write(&s, "3.dat", "\0", 1);
    scratch_text(&s, "4.dat", "");
    assert_int_equal(text_files_open(&env, scratch_path(&s, "*.dat"), 0, false, &files), STATUS_OK);
    assert_int_equal(files.binary_count, 2);
    text_files_tell_binary(&env, &files);
    assert_int_equal(warnings, 1);
    text_files_close(&env, &files);

    assert_int_equal(text_files_open(&env, scratch_path(&s, "1.dat"), 0, false, &files), STATUS_OK);
    assert_int_equal(files.binary_count, 0);
    text_files_close(&env, &files);
    env_destroy(&env);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_cut_after_a_line),
        cmocka_unit_test(test_text_without_lines_is_cut_between_characters),
        cmocka_unit_test(test_the_end_of_all_files_together_is_cut),
        cmocka_unit_test(test_empty_data_is_refused),
        cmocka_unit_test(test_packed_files_are_refused),
        cmocka_unit_test(test_nul_bytes_are_reported_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
