#include "cli/page/http_library.h"
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>

static const struct {
    const char *name;
    size_t offset; /* of the pointer in struct http_library */
} functions[] = {
#define HTTP_PLACE(name) {"MHD_" #name, offsetof(struct http_library, name)},
    HTTP_FUNCTIONS(HTTP_PLACE)
#undef HTTP_PLACE
};

const struct http_library *http_library(const char **why)
{
    static struct http_library library;
    static bool loaded;
    void *object = loaded ? NULL : dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    if (!loaded && object == NULL) {
        *why = dlerror();
        return NULL;
    }
    for (size_t i = 0; !loaded && i < sizeof functions / sizeof *functions; i++) {
        void *address = dlsym(object, functions[i].name);
        if (address == NULL) {
            *why = dlerror();
            return NULL;
        }
        *(void **)((char *)&library + functions[i].offset) = address;
    }
    loaded = true;
    return &library;
}
