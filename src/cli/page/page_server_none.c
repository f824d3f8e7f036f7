/* page_server_none -- stands for page_server.c where libmicrohttpd was not found. */
#include "cli/page/page.h"

const char *page_library(void)
{
    return "none";
}

enum status page_check(struct env *env)
{
    return FAIL(env, USAGE,
                "this sifr has no page server: libmicrohttpd was not found when it was built; "
                "install libmicrohttpd-dev (scripts/setup) and build again, or write the page to "
                "a file with `sifr report`");
}

enum status page_serve(struct cli *cli, const struct page_order *order)
{
    (void)order;
    return page_check(cli->env);
}
