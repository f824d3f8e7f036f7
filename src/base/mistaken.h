/* mistaken -- what a file is that was taken for one of a model: a page that a browser saved, a pointer that git left. */
#ifndef BASE_MISTAKEN_H
#define BASE_MISTAKEN_H
#include <stddef.h>

/* "an HTML page; ..." with what to do; NULL when these bytes tell nothing. */
const char *mistaken_for(const void *data, size_t bytes);

#endif
