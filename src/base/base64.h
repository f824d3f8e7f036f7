/* base64 -- bytes as text of RFC 4648, as YAML's !!binary has it. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H
#include <stdbool.h>
#include "base/text.h"

void base64_add(struct text *text, const void *data, size_t bytes);

/* Append the bytes that `code` stands for; spaces and line ends in it are passed over. false = it is no base64. */
bool base64_decode(const char *code, struct text *text);

#endif
