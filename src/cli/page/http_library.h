/* http_library -- libmicrohttpd, loaded on first use: the command also starts where it is missing,
 * and where it is not needed its own libraries (TLS and more) take no time and memory.
 */
#ifndef CLI_PAGE_HTTP_LIBRARY_H
#define CLI_PAGE_HTTP_LIBRARY_H
#include <microhttpd.h>

#define HTTP_FUNCTIONS(X)            \
    X(start_daemon)                  \
    X(stop_daemon)                   \
    X(run_wait)                      \
    X(suspend_connection)            \
    X(resume_connection)             \
    X(get_connection_info)           \
    X(lookup_connection_value)       \
    X(create_response_from_buffer)   \
    X(create_response_from_callback) \
    X(add_response_header)           \
    X(queue_response)                \
    X(destroy_response)              \
    X(get_version)

/* `start_daemon` is MHD_start_daemon, and so on. */
struct http_library {
#define HTTP_POINTER(name) __typeof__(MHD_##name) *name;
    HTTP_FUNCTIONS(HTTP_POINTER)
#undef HTTP_POINTER
};

/* NULL, with the reason in *why, if it cannot be loaded. For one thread. */
const struct http_library *http_library(const char **why);

#endif
