/* plugin -- a part of sifr in its own shared object, loaded on first use.
 *
 * Back ends that need other libraries (CUDA) are in libsifr-<name>.so, so that the command also
 * runs where these libraries are missing. The object is in the folder of the command or library, or
 * in ../lib from there. For tests, SIFR_PLUGIN_FOLDER names another folder by an absolute path. A
 * plugin must be built from the same sources: its string sifr_<name>_version is compared with ours.
 *
 * The system keeps the list of loaded objects, so there is no state here. Objects are never
 * unloaded.
 */
#ifndef BASE_PLUGIN_H
#define BASE_PLUGIN_H
#include <stdbool.h>
#include <stddef.h>
#include "base/env.h"

/* *out = the address of `symbol` in the plugin `name` ("cuda"); `out` is the address of any
 * pointer. STATUS_CONFIG, with the reason and what to do, when it cannot be loaded. */
enum status plugin_find(struct env *env, const char *name, const char *symbol, void *out);

/* The same without logging: false, with the reason in `why` (of `bytes` bytes). */
bool plugin_look(const char *name, const char *symbol, void *out, char *why, size_t bytes);

bool plugin_is_there(const char *file); /* whether it can be loaded; does not keep it loaded */
const char *plugin_version(void);       /* the expected sifr_<name>_version: "0.1.0 3f0c77a1" */

#endif
