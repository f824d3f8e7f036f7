/* run_watch -- a folder that grows, is cut, is damaged, or is not there; what is new is printed
 * once; the state of a run follows from its lock and its summary. */
#include <unistd.h>
#include <sys/stat.h>
#include "testing.h"
#include "base/json_doc.h"
#include "cli/page/run_watch.h"

static struct env env;
static char folder[] = "/tmp/sifr-watch.XXXXXX";

static const char *in(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *mode, const char *text)
{
    FILE *file = fopen(in(name), mode);
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void clean(void)
{
    static const char *const all[] = {"metrics.jsonl", "samples.jsonl", "summary.json",
                                      "config.yaml", "lock"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        unlink(in(all[i]));
}

static void step(int number, double loss)
{
    char line[256];
    snprintf(line, sizeof line, "{\"step\":%d,\"loss\":%g,\"comm\":{\"ranks\":4}}\n", number, loss);
    put("metrics.jsonl", "a", line);
}

typedef void print_fn(struct run_watch *watch, struct text *text);
static void print_about(struct run_watch *watch, struct text *text)
{
    run_watch_about(watch, text);
}
static void print_all(struct run_watch *watch, struct text *text)
{
    run_watch_series(watch, 0, text);
}

/* Everything that is printed is JSON. */
static json_t *printed(struct run_watch *watch, print_fn *print, struct json_doc *doc)
{
    static const struct json_rules rules = {
        .values = 100000, .lists = 10000, .flags = JSON_ALLOW_NUL};
    struct text text;
    text_init(&text, &env);
    print(watch, &text);
    assert_int_equal(json_doc_open(&env, text_string(&text), text.bytes, &rules, doc), STATUS_OK);
    text_free(&text);
    return doc->root;
}

static const char *state_of(struct run_watch *watch)
{
    static char word[32];
    struct json_doc doc;
    json_t *about = printed(watch, print_about, &doc);
    snprintf(word, sizeof word, "%s", json_string_value(json_object_get(about, "state")));
    json_doc_close(&doc);
    return word;
}

static int rows_at(const json_t *news, const char *key)
{
    return (int)json_integer_value(json_object_get(json_object_get(news, "steps"), key));
}

static void a_run_is_followed(void **state)
{
    (void)state;
    struct run_watch watch;
    struct json_doc doc;
    clean();
    assert_int_equal(run_watch_open(&env, folder, &watch), STATUS_OK);
    run_watch_look(&watch);
    assert_string_equal(state_of(&watch), "waiting");
    step(1, 5);
    step(2, 4);
    put("metrics.jsonl", "a", "{\"step\":3,\"lo"); /* still being written */
    assert_true(run_watch_look(&watch));
    assert_int_equal(watch.steps.rows, 2);
    json_t *news = printed(&watch, run_watch_news, &doc);
    assert_int_equal(rows_at(news, "at"), 0);
    assert_int_equal(rows_at(news, "rows"), 2);
    json_doc_close(&doc);
    put("metrics.jsonl", "a", "ss\":3.5,\"val\":{\"loss\":3.75}}\n");
    assert_true(run_watch_look(&watch));
    news = printed(&watch, run_watch_news, &doc); /* only what is new */
    assert_int_equal(rows_at(news, "at"), 2);
    assert_int_equal(rows_at(news, "rows"), 3);
    json_doc_close(&doc);
    assert_int_equal(watch.evaluations.rows, 1);
    assert_false(run_watch_look(&watch)); /* nothing has changed */
    run_watch_close(&watch);
}

static void a_resumed_run_is_read_again(void **state)
{
    (void)state;
    struct run_watch watch;
    clean();
    for (int i = 1; i <= 5; i++)
        step(i, i);
    assert_int_equal(run_watch_open(&env, folder, &watch), STATUS_OK);
    run_watch_look(&watch);
    int64_t generation = watch.generation;
    assert_int_equal(truncate(in("metrics.jsonl"), 0), 0); /* shorter */
    step(1, 1);
    run_watch_look(&watch);
    assert_int_equal(watch.steps.rows, 1);
    assert_true(watch.generation > generation);
    generation = watch.generation;
    unlink(in("metrics.jsonl")); /* replaced, maybe with the same inode */
    for (int i = 1; i <= 7; i++)
        step(i, i + 1);
    run_watch_look(&watch);
    assert_int_equal(watch.steps.rows, 7);
    assert_true(series_last(&watch.steps, 0) == 7);
    assert_true(watch.generation > generation);
    run_watch_close(&watch);
}

static void damaged_files_are_survived(void **state)
{
    (void)state;
    struct run_watch watch;
    struct json_doc doc;
    clean();
    put("metrics.jsonl", "w", "not JSON\n[1,2]\n{\"loss\":1}\n{\"step\":\"x\"}\n\n{}\n");
    put("samples.jsonl", "w", "{\"step\":1,\"text\":\"</script>\\u0000\"}\nnot JSON\n{\"step\":\n");
    put("summary.json", "w", "{\"end\": tru");
    put("config.yaml", "w", "a: [\n\t- b: {{{\nmodel:\n  layers: \"<b>\"\n");
    step(4, 2);
    assert_int_equal(run_watch_open(&env, folder, &watch), STATUS_OK);
    run_watch_look(&watch);
    assert_int_equal(watch.steps.rows, 1);
    json_t *about = printed(&watch, print_about, &doc);
    assert_int_equal(json_array_size(json_object_get(about, "samples")), 1);
    assert_int_equal(json_integer_value(json_object_get(about, "skipped")), 5);
    assert_true(json_is_null(json_object_get(about, "summary")));
    json_doc_close(&doc);
    printed(&watch, print_all, &doc);
    json_doc_close(&doc);
    assert_non_null(strstr(text_string(&watch.layout), "error")); /* said, not guessed */
    run_watch_close(&watch);
}

static void a_long_line_is_skipped(void **state)
{
    (void)state;
    struct run_watch watch;
    struct json_doc doc;
    clean();
    step(1, 1);
    FILE *file = fopen(in("metrics.jsonl"), "a");
    for (int i = 0; i < 3 * LINE_TAIL_BYTES; i++)
        fputc('x', file);
    fclose(file);
    assert_int_equal(run_watch_open(&env, folder, &watch), STATUS_OK);
    run_watch_look(&watch);
    put("metrics.jsonl", "a", "\n");
    step(2, 1);
    run_watch_look(&watch);
    assert_int_equal(watch.steps.rows, 2);
    json_t *about = printed(&watch, print_about, &doc);
    assert_int_equal(json_integer_value(json_object_get(about, "skipped")), 1);
    json_doc_close(&doc);
    put("metrics.jsonl", "w", "{\"step\":1}\n"); /* another file: nothing is skipped in it */
    run_watch_look(&watch);
    about = printed(&watch, print_about, &doc);
    assert_int_equal(json_integer_value(json_object_get(about, "skipped")), 0);
    json_doc_close(&doc);
    run_watch_close(&watch);
}

static void only_so_many_samples_are_kept(void **state)
{
    (void)state;
    struct run_watch watch;
    struct json_doc doc;
    clean();
    for (int i = 1; i <= 3 * RUN_SAMPLES; i++) {
        char line[64];
        snprintf(line, sizeof line, "{\"step\":%d,\"text\":\"a\"}\n", i);
        put("samples.jsonl", "a", line);
    }
    assert_int_equal(run_watch_open(&env, folder, &watch), STATUS_OK);
    run_watch_look(&watch);
    json_t *samples = json_object_get(printed(&watch, print_about, &doc), "samples");
    assert_int_equal(json_array_size(samples), RUN_SAMPLES);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(samples, 0), "step")),
                     2 * RUN_SAMPLES + 1);
    json_doc_close(&doc);
    run_watch_close(&watch);
}

static void the_state_follows_from_lock_and_summary(void **state)
{
    (void)state;
    struct run_watch watch;
    char lock[128], host[65] = "";
    clean();
    gethostname(host, sizeof host - 1);
    assert_int_equal(run_watch_open(&env, folder, &watch), STATUS_OK);
    snprintf(lock, sizeof lock, "%d %s\n", (int)getpid(), host);
    put("lock", "w", lock);
    step(1, 1);
    run_watch_look(&watch);
    assert_string_equal(state_of(&watch), "running");
    snprintf(lock, sizeof lock, "%d %s\n", 0x7ffffff0, host); /* above any process number */
    put("lock", "w", lock);
    run_watch_look(&watch);
    assert_string_equal(state_of(&watch), "died");
    put("lock", "w", "12 elsewhere\n");
    run_watch_look(&watch);
    assert_string_equal(state_of(&watch), "running");
    unlink(in("lock"));
    run_watch_look(&watch);
    assert_string_equal(state_of(&watch), "died");
    put("summary.json", "w", "{\"end\": \"done\"}");
    run_watch_look(&watch);
    assert_string_equal(state_of(&watch), "ended");
    run_watch_close(&watch);
}

static void a_missing_folder_is_a_run_that_has_not_begun(void **state)
{
    (void)state;
    struct run_watch watch;
    assert_int_equal(run_watch_open(&env, "/no/such/run", &watch), STATUS_OK);
    run_watch_look(&watch);
    assert_string_equal(state_of(&watch), "waiting");
    run_watch_close(&watch);
}

static void the_step_of_a_trace_is_found(void **state)
{
    (void)state;
    struct text text;
    text_init(&text, &env);
    clean();
    put("trace-rank-0.json", "w",
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
        "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":\"compute\"}"
        "}"
        ",\n"
        "{\"name\":\"early\",\"ph\":\"X\",\"ts\":1,\"dur\":2,\"pid\":0,\"tid\":0},\n"
        "{\"name\":\"step\",\"ph\":\"X\",\"ts\":100,\"dur\":50,\"pid\":0,\"tid\":3,\"args\":"
        "{\"number\":7}},\n"
        "{\"name\":\"a \\\"b\\\"\",\"ph\":\"X\",\"ts\":110,\"dur\":20,\"pid\":0,\"tid\":0,\"args\":"
        "{\"bytes\":9}},\n"
        "{\"name\":\"x\",\"ph\":\"X\",\"ts\":120,\"dur\":20,\"pid\":0,\"tid\":9999},\n"
        "broken,\n]}\n");
    run_trace_print(&env, folder, 1, 100, &text);
    assert_non_null(strstr(text_string(&text), "\"step\":7,\"length\":50"));
    assert_non_null(strstr(text_string(&text), "\"spans\":[0,10,20,0,9]"));
    assert_non_null(strstr(text_string(&text), "\"names\":[\"a \\\"b\\\"\"]"));
    assert_true(json_scan_is_valid(text.data, text.bytes));
    unlink(in("trace-rank-0.json"));
    text_clear(&text);
    run_trace_print(&env, folder, 1, 100, &text);
    assert_string_equal(text_string(&text), "null");
    text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_is_followed),
        cmocka_unit_test(a_resumed_run_is_read_again),
        cmocka_unit_test(damaged_files_are_survived),
        cmocka_unit_test(a_long_line_is_skipped),
        cmocka_unit_test(only_so_many_samples_are_kept),
        cmocka_unit_test(the_state_follows_from_lock_and_summary),
        cmocka_unit_test(a_missing_folder_is_a_run_that_has_not_begun),
        cmocka_unit_test(the_step_of_a_trace_is_found),
    };
    env = testing_env(1);
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    clean();
    rmdir(folder);
    env_destroy(&env);
    return failed;
}
