#include "cli/page/page_request.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char *const words[PAGE_TARGETS] = {
    [PAGE_INDEX] = "",        [PAGE_STYLE] = "page.css", [PAGE_SCRIPT] = "page.js",
    [PAGE_RUNS] = "runs",     [PAGE_SERIES] = "series",  [PAGE_ABOUT] = "about",
    [PAGE_LAYOUT] = "layout", [PAGE_TRACE] = "trace",    [PAGE_LIVE] = "live",
};

/* --- hosts ---------------------------------------------------------------------------------- */

/* Split "name:port" and "[::1]:port"; *port points behind the colon, NULL = there is none. */
static bool split_host(const char *text, char host[PAGE_HOST_BYTES], const char **port)
{
    bool bracket = text[0] == '[';
    const char *end = bracket ? strchr(text, ']') : text + strcspn(text, ":");
    const char *from = text + bracket;
    if (end == NULL || end - from >= PAGE_HOST_BYTES || end == from)
        return false;
    memcpy(host, from, (size_t)(end - from));
    host[end - from] = 0;
    end += bracket;
    *port = *end == ':' ? end + 1 : NULL;
    return *end == ':' || *end == 0;
}

static bool is_address(const char *host)
{
    struct in6_addr room;
    return inet_pton(AF_INET, host, &room) == 1 || inet_pton(AF_INET6, host, &room) == 1;
}

static bool is_loopback(const char *host)
{
    return strcasecmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/* The port is not compared: ssh -L may have chosen another. */
static bool host_is_ours(const struct page_rules *rules, const char *text)
{
    char host[PAGE_HOST_BYTES];
    const char *port;
    if (text == NULL || !split_host(text, host, &port) || (port && page_number(port, 65536) < 0))
        return false;
    return strcasecmp(host, "localhost") == 0 || is_address(host) ||
           (*rules->host && strcasecmp(host, rules->host) == 0);
}

static bool origin_is_ours(const char *origin, const char *host)
{
    static const char scheme[] = "http://";
    return origin == NULL || (strncmp(origin, scheme, sizeof scheme - 1) == 0 &&
                              strcasecmp(origin + sizeof scheme - 1, host) == 0);
}

/* --- the request ---------------------------------------------------------------------------- */

/* Takes the same time wherever the first difference is. */
static bool token_matches(const char *token, const char *text)
{
    unsigned different = 0;
    if (strlen(text) < PAGE_TOKEN_BYTES - 1)
        return false;
    for (int i = 0; i < PAGE_TOKEN_BYTES - 1; i++)
        different |= (unsigned)(unsigned char)(token[i] ^ text[i]);
    return different == 0;
}

int page_request_check(const struct page_rules *rules, const struct page_request *request,
                       enum page_target *target)
{
    const char *path = request->path;
    if (path == NULL || request->method == NULL || path[0] != '/')
        return 400;
    if (!host_is_ours(rules, request->host) || !origin_is_ours(request->origin, request->host))
        return 403;
    if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0)
        return 405;
    if (!token_matches(rules->token, path + 1))
        return 403;
    path += PAGE_TOKEN_BYTES;
    if (*path++ != '/')
        return 404;
    for (int i = 0; i < PAGE_TARGETS; i++) {
        if (strcmp(path, words[i]) == 0) {
            *target = (enum page_target)i;
            return 200;
        }
    }
    return 404;
}

long long page_number(const char *text, long long limit)
{
    long long value = 0;
    if (text == NULL || *text == 0)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || value > limit / 10)
            return -1;
        value = 10 * value + (*text - '0');
    }
    return value < limit ? value : -1;
}

/* --- the address to listen on --------------------------------------------------------------- */

bool page_address_parse(const char *text, struct page_address *address)
{
    const char *port = NULL;
    *address = (struct page_address){.host = "127.0.0.1"};
    if (*text == 0)
        return true;
    if (page_number(text, 65536) >= 0)
        port = text;
    else if (!split_host(text, address->host, &port))
        return false;
    if (strcasecmp(address->host, "localhost") == 0)
        snprintf(address->host, sizeof address->host, "127.0.0.1");
    if (!is_address(address->host) || (port && page_number(port, 65536) < 0))
        return false;
    address->port = port ? (int)page_number(port, 65536) : 0;
    address->beyond = !is_loopback(address->host);
    return true;
}
