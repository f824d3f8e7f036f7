/* page_request -- decides what a request may see. No I/O: this is what is fuzzed.
 *
 * A page is at /TOKEN/, and everything it loads is below it. The token is random and new for each
 * server, so another user of the machine, or a web site that guesses the port, gets nothing. The
 * Host header must be an address or a name of this machine: a web site whose name was made to
 * resolve to 127.0.0.1 (DNS rebinding) sends its own name. Nothing in a URL ever becomes a path.
 */
#ifndef CLI_PAGE_REQUEST_H
#define CLI_PAGE_REQUEST_H
#include <stdbool.h>
#include <stddef.h>

enum { PAGE_TOKEN_BYTES = 33, PAGE_HOST_BYTES = 254 }; /* with the NUL */

enum page_target {
    PAGE_INDEX,
    PAGE_STYLE,
    PAGE_SCRIPT,
    PAGE_RUNS,   /* the list of runs */
    PAGE_SERIES, /* of a run, as the next three */
    PAGE_ABOUT,
    PAGE_LAYOUT,
    PAGE_TRACE,
    PAGE_LIVE, /* server-sent events */
    PAGE_TARGETS
};

struct page_rules {
    char token[PAGE_TOKEN_BYTES];
    char host[PAGE_HOST_BYTES]; /* another name that Host may have; "" = none */
};

struct page_request { /* pointers may be NULL */
    const char *method;
    const char *path; /* without the query */
    const char *host, *origin;
};

/* The HTTP status: 200 sets *target. */
int page_request_check(const struct page_rules *rules, const struct page_request *request,
                       enum page_target *target);

/* A whole number below `limit`; -1 = it is none. For the query's run=1, since=17. */
long long page_number(const char *text, long long limit);

/* "8080", "HOST:8080", "[::1]:8080", "HOST". The host is an IP address or localhost. Port 0: any. */
struct page_address {
    char host[PAGE_HOST_BYTES];
    int port;    /* 0 = not given */
    bool beyond; /* not a loopback address: other machines can connect */
};
bool page_address_parse(const char *text, struct page_address *address);

#endif
