/* Any bytes as a configuration: they are refused with a message, or accepted; then the printed form
 * parses again and prints the same. */
#include <string.h>
#include "../base/options_case.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void print_again(struct env *env, const struct text *first)
{
    struct case_values values;
    struct options *options;
    struct text second;
    text_init(&second, env);
    CHECK_EQ(case_bind(env, &values, &options), STATUS_OK);
    CHECK_EQ(options_load_yaml_text(options, text_string(first), first->bytes, "printed"),
             STATUS_OK);
    options_print_yaml(options, &second);
    CHECK(strcmp(text_string(first), text_string(&second)) == 0);
    options_destroy(options);
    text_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    struct case_values values;
    struct options *options;
    CHECK_EQ(env_create(&env, NULL, NULL, LOG_ERROR, 1), STATUS_OK);
    CHECK_EQ(case_bind(&env, &values, &options), STATUS_OK);
    enum status st = options_load_yaml_text(options, (const char *)data, bytes, "fuzz.yaml");
    CHECK((st == STATUS_OK) == (log_first_error(env.log)[0] == 0));
    if (st == STATUS_OK) {
        struct text text;
        text_init(&text, &env);
        options_print_yaml(options, &text);
        print_again(&env, &text);
        text_free(&text);
    }
    options_destroy(options);
    env_destroy(&env);
    return 0;
}
