/* Parsed trees respect limits and are counted in the memory account. Running out of memory is never
 * reported as bad syntax, whichever of jansson's allocations fails. */
#include <jansson.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/fixture.h"
#include "base/json_doc.h"
#include "base/text.h"

static const struct json_rules wide = {
    .values = 1 << 24, .lists = 1 << 24, .flags = JSON_REJECT_DUPLICATES};

/* --- jansson's memory ----------------------------------------------------------------------- */

static struct {
    long left;         /* countdown to the allocation that fails; 0 = none */
    size_t held, most; /* bytes, including the C library's overhead */
} heap;

static void *heap_take(size_t bytes)
{
    if (heap.left > 0 && --heap.left == 0)
        return NULL;
    void *block = malloc(bytes);
    heap.held += block ? malloc_usable_size(block) + 8 : 0;
    heap.most = heap.held > heap.most ? heap.held : heap.most;
    return block;
}

static void heap_give(void *block)
{
    heap.held -= block ? malloc_usable_size(block) + 8 : 0;
    free(block);
}

static const char SAMPLE[] =
    "{\"name\": \"a string that is long enough\", \"numbers\": [1, -2.5, 3e4, 12345678901],"
    " \"flags\": [true, false, null], \"\\u00e9\": {\"deeper\": [[[\"x\"]], {}, []]},"
    " \"many\": [0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20],"
    " \"a\": 1, \"b\": 1, \"c\": 1, \"d\": 1, \"e\": 1, \"f\": 1, \"g\": 1, \"h\": 1, \"i\": 1}";

static void test_every_allocation_fails(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    struct json_doc doc;
    long calls = 0, unseen = 0;
    json_set_alloc_funcs(heap_take, heap_give);
    for (bool failed = true; failed; calls++) {
        heap.left = calls + 1;
        enum status st = json_doc_open(env, SAMPLE, strlen(SAMPLE), &wide, &doc);
        failed = heap.left == 0;
        if (st != STATUS_OK && st != STATUS_MEMORY)
            fail_msg("allocation %ld failed, but the text was called invalid: %s", calls + 1,
                     doc.error.text);
        unseen += failed && st == STATUS_OK;
        json_doc_close(&doc);
        assert_int_equal(mem_total(env->mem), 0);
    }
    heap.left = 0;
    /* jansson does not check the allocation that grows its string buffer */
    assert_true(unseen <= 1);
    printf("%ld allocations\n", calls);
    assert_true(calls > 50);
    assert_int_equal(heap.held, 0);
    json_set_alloc_funcs(malloc, free);
    fixture_close(&f);
}

/* The counted bytes are an upper bound of what a tree allocates, and at most three times as
 * much. */
static void expect_counted(struct env *env, const char *unit, int times)
{
    struct text text;
    struct json_doc doc;
    text_init(&text, env);
    text_add(&text, "[0");
    for (int i = 0; i < times; i++)
        text_printf(&text, unit, i, i, i);
    text_add(&text, *unit == ',' ? "]" : "}]");
    assert_int_equal(text.status, STATUS_OK);
    size_t before = mem_total(env->mem);
    heap.held = heap.most = 0;
    assert_int_equal(json_doc_open(env, text_string(&text), text.bytes, &wide, &doc), STATUS_OK);
    size_t counted = mem_total(env->mem) - before;
    printf("%-40s %4.1f times its bytes: %zu counted, %zu allocated\n", unit,
           (double)heap.most / (double)text.bytes, counted, heap.most);
    if (counted < heap.most || counted > 3 * heap.most)
        fail_msg("%s: %zu bytes counted, %zu allocated", unit, counted, heap.most);
    json_doc_close(&doc);
    assert_int_equal(mem_total(env->mem), before);
    text_free(&text);
}

static void test_counted(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    json_set_alloc_funcs(heap_take, heap_give);
    expect_counted(env, ",{}", 20000);
    expect_counted(env, ",[]", 20000);
    expect_counted(env, ",1", 70000);
    expect_counted(env, ",\"\"", 50000);
    expect_counted(env, ",\"merge %d of two\"", 20000);
    expect_counted(env, ",[4194304, \"%016x\"]", 20000);
    expect_counted(env, ",{\"dtype\":\"F32\",\"shape\":[%d,768],\"data_offsets\":[%d,%d]}", 9000);
    json_set_alloc_funcs(malloc, free);
    fixture_close(&f);
}

/* --- limits --------------------------------------------------------------------------------- */

static void test_nul_bytes_are_refused(void **state)
{
    (void)state;
    static const char text[] = "{\n\"a\": 5\0}"; /* jansson alone accepts this */
    struct fixture f;
    struct env *env = fixture_open(&f);
    struct json_doc doc;
    assert_int_equal(json_doc_open(env, text, sizeof text - 1, &wide, &doc), STATUS_FORMAT);
    assert_int_equal(doc.error.line, 2);
    assert_string_equal(doc.error.text, "it has a NUL byte");
    fixture_close(&f);
}

static void test_limits(void **state)
{
    (void)state;
    static const struct json_rules narrow = {.values = 6, .lists = 3};
    struct fixture f;
    struct env *env = fixture_open(&f);
    struct json_doc doc;
    assert_int_equal(json_doc_open(env, "[1,[2],[3]]", 11, &narrow, &doc), STATUS_OK);
    json_doc_close(&doc);
    json_doc_close(&doc);
    assert_int_equal(json_doc_open(env, "[1,2,3,4,5,6]", 13, &narrow, &doc), STATUS_FORMAT);
    assert_string_equal(doc.error.text, "it has 7 values where at most 6 are allowed");
    assert_int_equal(json_doc_open(env, "[[[[]]]]", 8, &narrow, &doc), STATUS_FORMAT);
    assert_string_equal(doc.error.text, "it has 4 lists and objects where at most 3 are allowed");
    assert_null(doc.root);
    assert_int_equal(json_doc_open(env, "[1", 2, &narrow, &doc), STATUS_FORMAT);
    assert_contains(doc.error.text, "expected near end of file");
    assert_int_equal(json_doc_open(env, "{\"a\":1,\"a\":2}", 13, &wide, &doc), STATUS_FORMAT);
    assert_contains(doc.error.text, "duplicate");
    mem_fail_at(env->mem, 1);
    assert_int_equal(json_doc_open(env, "[1]", 3, &narrow, &doc), STATUS_MEMORY);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation_fails), cmocka_unit_test(test_counted),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_nul_bytes_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
