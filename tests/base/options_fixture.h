/* options_fixture -- the bound tables of options_case and an env, as setup and teardown of a
 * test. */
#ifndef TESTS_BASE_OPTIONS_FIXTURE_H
#define TESTS_BASE_OPTIONS_FIXTURE_H
#include "base/fixture.h"
#include "base/options_case.h"

struct options_fixture {
    struct fixture f;
    struct env *env;
    struct case_values v;
    struct options *options;
};

static inline int options_setup(void **state)
{
    struct options_fixture *o = calloc(1, sizeof *o);
    o->env = fixture_open(&o->f);
    *state = o;
    return case_bind(o->env, &o->v, &o->options) == STATUS_OK ? 0 : -1;
}

static inline int options_teardown(void **state)
{
    struct options_fixture *o = *state;
    options_destroy(o->options);
    fixture_close(&o->f);
    free(o);
    return 0;
}

static inline enum status load(struct options_fixture *o, const char *yaml)
{
    return options_load_yaml_text(o->options, yaml, strlen(yaml), "c.yaml");
}

/* `call` must fail with `code` and exactly this message. */
#define assert_refused(o, call, code, message)                        \
    do {                                                              \
        log_error_clear((o)->env->log);                               \
        assert_int_equal(call, STATUS_##code);                        \
        assert_string_equal(log_first_error((o)->env->log), message); \
    } while (0)

#define OPTIONS_TEST(test) cmocka_unit_test_setup_teardown(test, options_setup, options_teardown)

#endif
