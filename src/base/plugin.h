/* plugin -- a part of sifr in a shared object of its own, loaded when it is first asked for.
 *
 * Back ends that need foreign libraries (CUDA) live in libsifr-<name>.so, so that the command runs
 * where these libraries are missing. The object lies beside the command or library, or in ../lib
 * from there; the variable SIFR_PLUGIN_FOLDER names another folder by an absolute path, for
 * tests. It must come from the same sources: it says so in the text sifr_<name>_version, which is compared with ours.
 *
 * The system keeps the list of loaded objects, so there is no state here; what was loaded stays.
 */
#ifndef BASE_PLUGIN_H
#define BASE_PLUGIN_H
#include <stdbool.h>
#include <stddef.h>
#include "base/env.h"

/* *out = the address of `symbol` in the plugin `name` ("cuda"); `out` is the address of any
 * pointer. STATUS_CONFIG with what is wrong and what to do when there is none. */
enum status plugin_find(struct env *env, const char *name, const char *symbol, void *out);

/* The same for who only looks: false, and the reason in `why`, which has `bytes` bytes. */
bool plugin_look(const char *name, const char *symbol, void *out, char *why, size_t bytes);

bool plugin_is_there(const char *file); /* can be loaded; it is not kept */
const char *plugin_version(void);       /* what sifr_<name>_version must say: "0.1.0 3f0c77a1" */

#endif
