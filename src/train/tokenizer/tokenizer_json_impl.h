/* tokenizer_json_impl -- shared by tokenizer_json.c and tokenizer_json_steps.c. */
#ifndef TRAIN_TOKENIZER_JSON_IMPL_H
#define TRAIN_TOKENIZER_JSON_IMPL_H
#include "base/json_doc.h"
#include "train/tokenizer/tokenizer_impl.h"

#define MARKER "\xe2\x96\x81" /* U+2581, which stands for a space */

struct reader {
    struct env *env;             /* borrowed */
    const char *origin;          /* borrowed */
    struct tokenizer *tokenizer; /* borrowed; being filled */
    json_t *vocab, *added;       /* borrowed: model.vocab, added_tokens (or NULL) */
    struct text spelling;        /* scratch */
    size_t blob_bytes;
    bool byte_level; /* the pre_tokenizer ends with ByteLevel */
    int steps;       /* of the pre_tokenizer, so far */
    struct normalizer_work *normalizing;
};

#define MALFORMED(r, format, ...) FAIL((r)->env, FORMAT, "%s: " format, (r)->origin, __VA_ARGS__)
#define REFUSED(r, format, ...)   FAIL((r)->env, CONFIG, "%s: " format, (r)->origin, __VA_ARGS__)

/* --- JSON values (tokenizer_json_steps.c) --------------------------------------------------- */

const char *type_of(const json_t *object); /* "without a type" if it has none */
bool is_type(const json_t *object, const char *type);
/* `fallback` if the key is absent or null. */
enum status read_bool(struct reader *r, const json_t *object, const char *key, bool fallback,
                      bool *value);

/* --- the parts of the file; each may be NULL or null (tokenizer_json_steps.c) ---------------- */

enum status read_normalizer(struct reader *r, const json_t *normalizer);
enum status read_pre_tokenizer(struct reader *r, const json_t *pre); /* sets r->byte_level */
/* These two come after the vocabulary. */
enum status read_post_processor(struct reader *r, const json_t *post);
enum status read_decoder(struct reader *r, const json_t *decoder);

#endif
