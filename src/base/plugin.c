/* plugin -- dlopen, with messages that say what to do.
 *
 * SIFR_BUILD is the version and a digest of the headers that both sides compile (CMakeLists.txt). A
 * plugin from other sources would misread structs, so it is refused.
 */
#include "base/plugin.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES = 4096 };

bool plugin_is_there(const char *file)
{
    void *object = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    if (object != NULL)
        dlclose(object);
    return object != NULL;
}

const char *plugin_version(void)
{
    return SIFR_BUILD;
}

/* The loader's message starts with the file that it could not open: the plugin, or a library that
 * it needs. */
static void explain(const char *file, char *why, size_t bytes)
{
    const char *words = dlerror();
    const char *base = strrchr(file, '/') != NULL ? strrchr(file, '/') + 1 : file;
    if (words == NULL)
        words = "the loader gives no reason";
    if (strstr(words, base) != NULL && strstr(words, "No such file") != NULL)
        snprintf(why, bytes, "%s is not there: this build has none, or it was not installed (%s)",
                 base, words);
    else
        snprintf(why, bytes,
                 "%s cannot be loaded: %s; install what is missing or name its folder in "
                 "LD_LIBRARY_PATH",
                 base, words);
}

static bool check_version(void *object, const char *name, const char *file, char *why, size_t bytes)
{
    char symbol[64];
    snprintf(symbol, sizeof symbol, "sifr_%s_version", name);
    const char *theirs = dlsym(object, symbol);
    if (theirs != NULL && strcmp(theirs, SIFR_BUILD) == 0)
        return true;
    snprintf(why, bytes, "%s is of another build: it is '%s' and this is '%s'; build both together",
             file, theirs != NULL ? theirs : "unknown", SIFR_BUILD);
    return false;
}

/* A plain name, which the loader searches in our RUNPATH, or a path in SIFR_PLUGIN_FOLDER. The
 * folder must be absolute: code is never loaded relative to the current folder. */
static bool name_file(const char *name, char file[FILE_BYTES], char *why, size_t bytes)
{
    const char *folder = getenv("SIFR_PLUGIN_FOLDER");
    bool elsewhere = folder != NULL && folder[0] != '\0';
    int length = snprintf(file, FILE_BYTES, "%s%slibsifr-%s.so", elsewhere ? folder : "",
                          elsewhere ? "/" : "", name);
    if ((!elsewhere || folder[0] == '/') && length < FILE_BYTES)
        return true;
    snprintf(why, bytes, "SIFR_PLUGIN_FOLDER is '%.200s'%s; give an absolute path", folder,
             folder[0] == '/' ? ", which is too long" : "");
    return false;
}

bool plugin_look(const char *name, const char *symbol, void *out, char *why, size_t bytes)
{
    char file[FILE_BYTES];
    if (!name_file(name, file, why, bytes))
        return false;
    void *object = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (object == NULL) {
        explain(file, why, bytes);
        return false;
    }
    void *address = NULL;
    if (!check_version(object, name, file, why, bytes))
        goto undo_object;
    address = dlsym(object, symbol);
    if (address == NULL) {
        snprintf(why, bytes, "%s has no %s", file, symbol);
        goto undo_object;
    }
    memcpy(out, &address, sizeof address);
    return true;
undo_object:
    dlclose(object);
    return false;
}

enum status plugin_find(struct env *env, const char *name, const char *symbol, void *out)
{
    char why[1024];
    if (plugin_look(name, symbol, out, why, sizeof why))
        return STATUS_OK;
    return FAIL(env, CONFIG, "there is no '%s' here: %s", name, why);
}
