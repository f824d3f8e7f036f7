/* Any bytes as what the page server parses: a request (method, path, host, origin, one per line), an
 * address to listen on, and the lines of a run's metrics. A request is allowed only with the token
 * and with a host of this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/text.h"
#include "cli/page/line_tail.h"
#include "cli/page/page_request.h"
#include "cli/page/run_series.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define TOKEN "0123456789abcdef0123456789abcdef"

static void ignore_line(void *user, enum log_level level, const char *line)
{
    (void)user, (void)level, (void)line;
}

static void check_request(char *text)
{
    const struct page_rules rules = {.token = TOKEN, .host = "node7"};
    char *rest = text;
    struct page_request request;
    struct page_address address;
    enum page_target target = PAGE_TARGETS;
    request.method = strsep(&rest, "\n");
    request.path = strsep(&rest, "\n");
    request.host = strsep(&rest, "\n");
    request.origin = strsep(&rest, "\n");
    if (page_request_check(&rules, &request, &target) == 200) {
        CHECK(target < PAGE_TARGETS);
        CHECK(strncmp(request.path, "/" TOKEN "/", sizeof TOKEN + 1) == 0);
        CHECK(strchr(request.path + sizeof TOKEN + 1, '/') == NULL);
        CHECK(request.host != NULL);
    }
    if (request.host && page_address_parse(request.host, &address))
        CHECK(address.port >= 0 && address.port < 65536);
    CHECK(page_number(request.origin, 1000) < 1000);
}

/* A line adds a row of its bytes. */
static void add_row(void *user, char *line, size_t bytes)
{
    double values[2] = {(double)bytes, atof(line)};
    CHECK(bytes == strlen(line) || memchr(line, 0, bytes) != NULL);
    series_add(user, values);
}

static void forget(void *user)
{
    series_clear(user);
}

static void follow_lines(struct env *env, const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"bytes", "value"};
    char path[64];
    struct series series;
    struct text text;
    int fd = memfd_create("lines", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct line_tail tail = {.path = path};
    CHECK(fd >= 0 && series_create(env, names, 2, &series) == STATUS_OK);
    for (size_t half = 0; half < 2; half++) { /* the file grows */
        size_t from = half * (bytes / 2), count = half ? bytes - from : bytes / 2;
        CHECK(write(fd, data + from, count) == (ssize_t)count);
        line_tail_read(env, &tail, add_row, forget, &series);
    }
    text_init(&text, env);
    CHECK(series_print_most(&series, 100, &text) == STATUS_OK);
    text_free(&text);
    series_free(&series);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct env env;
    char *text = malloc(bytes + 1);
    if (!text || env_create(&env, ignore_line, NULL, LOG_ERROR, 1) != STATUS_OK)
        return 0;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    check_request(text);
    follow_lines(&env, data, bytes);
    free(text);
    env_destroy(&env);
    return 0;
}
