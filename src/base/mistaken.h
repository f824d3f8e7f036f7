/* mistaken -- recognizes files that are often mistaken for model files, such as a saved HTML page
 * or a Git LFS pointer. */
#ifndef BASE_MISTAKEN_H
#define BASE_MISTAKEN_H
#include <stddef.h>

/* "an HTML page; ...", with what to do; NULL when the bytes are not recognized. */
const char *mistaken_for(const void *data, size_t bytes);

#endif
