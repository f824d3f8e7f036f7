/* page_server -- HTTP with libmicrohttpd, in one thread: the loop looks at the runs, tells the open
 * pages what is new, and answers requests in between.
 *
 * A page loads everything once and then listens (PAGE_LIVE). News are printed once for all pages:
 * event n is kept in a ring until EVENTS newer ones exist. A page that is further behind is
 * disconnected, and loads everything again.
 *
 * Bounds: CONNECTIONS connections, CONNECTION_BYTES for the headers of each; a connection that has
 * sent no complete request for PATIENCE seconds, or takes no data for IDLE_SECONDS, is closed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "cli/page/http_library.h"
#include "cli/page/page.h"

enum {
    CONNECTIONS = 192,
    CONNECTION_BYTES = 16 << 10,
    IDLE_SECONDS = 10,
    PATIENCE = 15,
    EVENTS = 64,
    LOOK_MS = 500,
    BEAT_SECONDS = 15, /* an empty event, so that the browser notices a lost connection */
    FIRST_PORT = 8017, /* without a port, the first free one of PORTS */
    PORTS = 20,
};

static const struct http_library *mhd; /* set by page_check */

struct server;

/* One connection. */
struct peer {
    struct server *server;
    struct MHD_Connection *connection; /* NULL = not in use */
    MHD_socket socket;
    double since;   /* the connection began, or its last request was answered */
    bool answering; /* a request is complete */
    bool live;      /* it listens to events ... */
    bool suspended; /* ... and has received all of them */
    int64_t next;   /* the event that is sent, or will be */
    size_t sent;    /* bytes of it */
};

struct server {
    struct env *env;
    struct page_rules rules;
    struct page_runs runs;
    struct MHD_Daemon *daemon;
    struct peer peers[CONNECTIONS];
    struct text events[EVENTS];
    int64_t event_count;
    double beat;
};

/* --- events --------------------------------------------------------------------------------- */

static void wake_all(struct server *server)
{
    for (int i = 0; i < CONNECTIONS; i++) {
        struct peer *peer = &server->peers[i];
        if (peer->connection && peer->suspended) {
            peer->suspended = false;
            mhd->resume_connection(peer->connection);
        }
    }
}

static struct text *next_event(struct server *server)
{
    struct text *event = &server->events[server->event_count % EVENTS];
    text_clear(event);
    return event;
}

static void look_at_runs(struct server *server)
{
    double now = clock_seconds();
    int64_t before = server->event_count;
    for (int i = 0; i < server->runs.count; i++) {
        if (!run_watch_look(&server->runs.watches[i]))
            continue;
        struct text *event = next_event(server);
        text_printf(event, "data: {\"run\":%d,\"event\":%" PRId64 ",\"news\":", i,
                    server->event_count + 1);
        run_watch_news(&server->runs.watches[i], event);
        text_add(event, "}\n\n");
        server->event_count++;
    }
    if (server->event_count == before && now - server->beat > BEAT_SECONDS) {
        text_add(next_event(server), ":\n\n");
        server->event_count++;
    }
    if (server->event_count > before) {
        server->beat = now;
        wake_all(server);
    }
}

static ssize_t read_events(void *user, uint64_t position, char *room, size_t most)
{
    struct peer *peer = user;
    struct server *server = peer->server;
    (void)position;
    if (server->event_count - peer->next > EVENTS)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (peer->next == server->event_count) {
        peer->suspended = true;
        mhd->suspend_connection(peer->connection);
        return 0;
    }
    const struct text *event = &server->events[peer->next % EVENTS];
    size_t bytes = event->bytes - peer->sent < most ? event->bytes - peer->sent : most;
    memcpy(room, event->data + peer->sent, bytes);
    peer->sent += bytes;
    if (peer->sent == event->bytes) {
        peer->next++;
        peer->sent = 0;
    }
    return (ssize_t)bytes;
}

/* --- answers -------------------------------------------------------------------------------- */

static enum MHD_Result send_response(struct MHD_Connection *connection, int status,
                                     const char *type, struct MHD_Response *response)
{
    static const char *const headers[][2] = {
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
         "'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cache-Control", "no-store"},
    };
    if (response == NULL)
        return MHD_NO;
    mhd->add_response_header(response, "Content-Type", type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        mhd->add_response_header(response, headers[i][0], headers[i][1]);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        mhd->add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = mhd->queue_response(connection, (unsigned)status, response);
    mhd->destroy_response(response);
    return result;
}

static enum MHD_Result send_file(struct MHD_Connection *connection, const char *type,
                                 const struct page_file *file)
{
    return send_response(
        connection, MHD_HTTP_OK, type,
        mhd->create_response_from_buffer(file->bytes, (void *)file->data, MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result refuse(struct MHD_Connection *connection, int status)
{
    const char *words = status == MHD_HTTP_FORBIDDEN
                            ? "sifr: not allowed; open the address that sifr printed\n"
                        : status == MHD_HTTP_NOT_FOUND ? "sifr: there is nothing here\n"
                                                       : "sifr: the request was refused\n";
    return send_response(
        connection, status, "text/plain; charset=utf-8",
        mhd->create_response_from_buffer(strlen(words), (void *)words, MHD_RESPMEM_PERSISTENT));
}

static enum MHD_Result send_json(struct MHD_Connection *connection, const struct text *text)
{
    if (text->status != STATUS_OK)
        return refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE);
    return send_response(connection, MHD_HTTP_OK, "application/json; charset=utf-8",
                         mhd->create_response_from_buffer(text->bytes, (void *)text_string(text),
                                                          MHD_RESPMEM_MUST_COPY));
}

static void print_runs(const struct server *server, struct text *text)
{
    text_printf(text, "{\"sifr\":\"%s\",\"event\":%" PRId64 ",\"runs\":[", SIFR_VERSION,
                server->event_count);
    for (int i = 0; i < server->runs.count; i++) {
        const char *folder = server->runs.watches[i].folder;
        text_add(text, i ? "," : "");
        text_json_string(text, folder, strlen(folder));
    }
    text_printf(text, "],\"left_out\":%d}", server->runs.left_out);
}

static const char *query(struct MHD_Connection *connection, const char *key)
{
    return mhd->lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, key);
}

static enum MHD_Result answer_run(struct server *server, struct MHD_Connection *connection,
                                  enum page_target target)
{
    struct text text;
    long long run =
        target == PAGE_RUNS ? 0 : page_number(query(connection, "run"), server->runs.count);
    if (run < 0)
        return refuse(connection, MHD_HTTP_NOT_FOUND);
    const struct run_watch *watch = &server->runs.watches[run];
    text_init(&text, server->env);
    switch (target) {
    case PAGE_RUNS: print_runs(server, &text); break;
    case PAGE_SERIES: run_watch_series(watch, 0, &text); break;
    case PAGE_ABOUT: run_watch_about(watch, &text); break;
    case PAGE_LAYOUT: text_add(&text, watch->layout.bytes ? watch->layout.data : "null"); break;
    default: text_add(&text, watch->trace.bytes ? watch->trace.data : "null"); break;
    }
    enum MHD_Result result = send_json(connection, &text);
    text_free(&text);
    return result;
}

static enum MHD_Result answer_live(struct peer *peer, struct MHD_Connection *connection)
{
    struct server *server = peer->server;
    long long since = page_number(query(connection, "since"), INT64_MAX);
    if (since < 0 || since > server->event_count || server->event_count - since > EVENTS)
        return refuse(connection, MHD_HTTP_GONE);
    peer->live = true;
    peer->next = since;
    peer->sent = 0;
    return send_response(
        connection, MHD_HTTP_OK, "text/event-stream",
        mhd->create_response_from_callback(MHD_SIZE_UNKNOWN, 8 << 10, read_events, peer, NULL));
}

static struct peer *peer_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        mhd->get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static enum MHD_Result answer(void *user, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **state)
{
    struct server *server = user;
    struct peer *peer = peer_of(connection);
    enum page_target target;
    (void)version;
    (void)upload;
    (void)upload_bytes;
    (void)state;
    if (peer == NULL)
        return MHD_NO;
    peer->answering = true;
    const struct page_request request = {
        .method = method,
        .path = url,
        .host = mhd->lookup_connection_value(connection, MHD_HEADER_KIND, "Host"),
        .origin = mhd->lookup_connection_value(connection, MHD_HEADER_KIND, "Origin")};
    int status = page_request_check(&server->rules, &request, &target);
    if (status != MHD_HTTP_OK)
        return refuse(connection, status);
    switch (target) {
    case PAGE_INDEX: return send_file(connection, "text/html; charset=utf-8", &page_html);
    case PAGE_STYLE: return send_file(connection, "text/css; charset=utf-8", &page_css);
    case PAGE_SCRIPT: return send_file(connection, "text/javascript; charset=utf-8", &page_js);
    case PAGE_LIVE: return answer_live(peer, connection);
    default: return answer_run(server, connection, target);
    }
}

/* --- connections ---------------------------------------------------------------------------- */

static void note_connection(void *user, struct MHD_Connection *connection, void **context,
                            enum MHD_ConnectionNotificationCode code)
{
    struct server *server = user;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*context)
            *(struct peer *)*context = (struct peer){0};
        return;
    }
    const union MHD_ConnectionInfo *info =
        mhd->get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    for (int i = 0; i < CONNECTIONS && info; i++) {
        if (server->peers[i].connection == NULL) {
            server->peers[i] = (struct peer){.server = server,
                                             .connection = connection,
                                             .socket = info->connect_fd,
                                             .since = clock_seconds()};
            *context = &server->peers[i];
            return;
        }
    }
}

static void note_answered(void *user, struct MHD_Connection *connection, void **state,
                          enum MHD_RequestTerminationCode code)
{
    struct peer *peer = peer_of(connection);
    (void)user;
    (void)state;
    (void)code;
    if (peer == NULL)
        return;
    peer->answering = peer->live = false;
    peer->since = clock_seconds();
}

/* A client that sends its request byte by byte is never idle, so the library keeps it. */
static void drop_slow(struct server *server)
{
    double now = clock_seconds();
    for (int i = 0; i < CONNECTIONS; i++) {
        const struct peer *peer = &server->peers[i];
        if (peer->connection && !peer->answering && now - peer->since > PATIENCE)
            shutdown(peer->socket, SHUT_RDWR);
    }
}

/* --- start ---------------------------------------------------------------------------------- */

static enum status make_token(struct env *env, char token[PAGE_TOKEN_BYTES])
{
    unsigned char bytes[(PAGE_TOKEN_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return FAIL(env, IO, "cannot get random bytes for the address: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return STATUS_OK;
}

static struct MHD_Daemon *listen_on(struct server *server, const char *host, int port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    bool is_v4 = inet_pton(AF_INET, host, &v4.sin_addr) == 1;
    if (!is_v4 && inet_pton(AF_INET6, host, &v6.sin6_addr) != 1)
        return NULL;
    errno = 0;
    return mhd->start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (is_v4 ? 0 : MHD_USE_IPv6), (uint16_t)port, NULL,
        NULL, answer, server, MHD_OPTION_SOCK_ADDR,
        is_v4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT,
        1, MHD_OPTION_NOTIFY_CONNECTION, note_connection, server, MHD_OPTION_NOTIFY_COMPLETED,
        note_answered, server, MHD_OPTION_END);
}

static enum status start(struct server *server, const struct page_address *address, int *port)
{
    *port = address->port ? address->port : FIRST_PORT;
    server->daemon = listen_on(server, address->host, *port);
    while (server->daemon == NULL && address->port == 0 && errno == EADDRINUSE &&
           *port < FIRST_PORT + PORTS - 1)
        server->daemon = listen_on(server, address->host, ++*port);
    if (server->daemon)
        return STATUS_OK;
    if (errno == EADDRNOTAVAIL)
        return FAIL(server->env, IO,
                    "cannot listen on %s: this machine does not have that address; choose one that "
                    "`ip addr` lists, or 127.0.0.1 for this machine alone",
                    address->host);
    return FAIL(server->env, IO, "cannot listen on %s port %d: %s; choose %s", address->host, *port,
                errno ? strerror(errno) : "refused",
                errno == EACCES ? "a port above 1023" : "another port");
}

static void say(struct cli *cli, bool child, const char *line)
{
    if (child)
        log_notice(cli->env, "%s", line);
    else
        console_line(cli->console, "%s", line);
}

/* The address to open, and on a remote machine how to reach it from the local one. */
static void say_address(struct cli *cli, const struct server *server,
                        const struct page_order *order, int port)
{
    char line[1024], here[64] = "";
    const char *ssh = getenv("SSH_CONNECTION"), *user = getenv("USER"), *host = order->address.host;
    int ssh_port = 22;
    bool v6 = strchr(host, ':') != NULL;
    if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0) {
        host = server->rules.host;
        v6 = false;
    }
    snprintf(line, sizeof line, "page: http://%s%s%s:%d/%s/", v6 ? "[" : "", host, v6 ? "]" : "",
             port, server->rules.token);
    say(cli, order->child, line);
    if (ssh && !order->address.beyond && sscanf(ssh, "%*s %*s %63s %d", here, &ssh_port) == 2) {
        char flag[32] = "";
        if (ssh_port != 22)
            snprintf(flag, sizeof flag, " -p %d", ssh_port);
        snprintf(line, sizeof line,
                 "page: from your own machine, first run: ssh%s -N -L %d:%s:%d %s%s%s", flag, port,
                 order->address.host, port, user ? user : "", user ? "@" : "", here);
        say(cli, order->child, line);
    }
    if (order->address.beyond)
        log_warn(cli->env,
                 "the page is not encrypted, and other machines can reach it: whoever sees the "
                 "address can read the runs");
}

static void finish(struct server *server)
{
    wake_all(server);
    if (server->daemon)
        mhd->stop_daemon(server->daemon);
    for (int i = 0; i < EVENTS; i++)
        text_free(&server->events[i]);
    page_runs_close(&server->runs);
}

static void serve(struct cli *cli, struct server *server, bool child)
{
    pid_t parent = getppid();
    double looked = 0;
    while (*cli->stop == 0 && (!child || getppid() == parent)) {
        mhd->run_wait(server->daemon, LOOK_MS / 2);
        if (clock_seconds() - looked < LOOK_MS / 1e3)
            continue;
        looked = clock_seconds();
        look_at_runs(server);
        drop_slow(server);
    }
    look_at_runs(server); /* how the run ended */
    for (double end = clock_seconds() + 0.5; clock_seconds() < end;)
        mhd->run_wait(server->daemon, 50);
}

enum status page_serve(struct cli *cli, const struct page_order *order)
{
    struct server *server;
    char words[PAGE_WORDS];
    enum status st;
    int port;
    TRY(page_check(cli->env));
    TRY(mem_alloc(cli->env, MEM_OTHER, "page", sizeof *server, &server));
    server->env = cli->env;
    server->beat = clock_seconds();
    for (int i = 0; i < EVENTS; i++)
        text_init(&server->events[i], cli->env);
    if (order->address.beyond)
        gethostname(server->rules.host, sizeof server->rules.host - 1);
    TRY_OR(done, make_token(cli->env, server->rules.token));
    TRY_OR(done, page_runs_open(cli->env, order->folders, order->folder_count, order->child,
                                &server->runs));
    TRY_OR(done, start(server, &order->address, &port));
    look_at_runs(server);
    if (*page_runs_left_out(&server->runs, words))
        log_warn(cli->env, "%s", words);
    say_address(cli, server, order, port);
    serve(cli, server, order->child);
done:
    if (st != STATUS_OK && order->child)
        log_warn(cli->env, "the run goes on without a page; `sifr page %s` shows it",
                 order->folders[0]);
    finish(server);
    mem_free(cli->env, server);
    return st;
}

const char *page_library(void)
{
    static char words[64];
    const char *why;
    const struct http_library *library = http_library(&why);
    if (library == NULL)
        return "none (libmicrohttpd cannot be loaded)";
    snprintf(words, sizeof words, "libmicrohttpd %s", library->get_version());
    return words;
}

enum status page_check(struct env *env)
{
    const char *why;
    mhd = http_library(&why);
    return mhd ? STATUS_OK
               : FAIL(env, USAGE,
                      "the page server cannot be loaded: %s; install libmicrohttpd12, or write the "
                      "page to a file with `sifr report`",
                      why);
}
