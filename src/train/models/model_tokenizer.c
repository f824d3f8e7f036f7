#include "train/models/model_tokenizer.h"
#include "base/file.h"
#include "train/data/source.h"

struct own_tokenizer {
    bool found; /* false: missing or unreadable, which may be why the user gave another one */
    int vocab;
    uint64_t print;
};

/* Fingerprint the tokenizer in the model's folder. The loaded tokenizer borrows `quiet`, so it must
 * be destroyed here. */
static enum status load_own(struct env *env, const struct model_source *source,
                            struct own_tokenizer *own_tokenizer)
{
    struct env quiet = *env;
    struct tokenizer *tokenizer;
    char *path;
    *own_tokenizer = (struct own_tokenizer){0};
    TRY(model_source_path(source, "tokenizer.json", &path));
    quiet.log = log_create(NULL, NULL, LOG_ERROR);
    enum status st = STATUS_OK;
    if (!quiet.log) {
        st = FAIL(env, MEMORY, "out of memory for a log");
    } else if (file_exists(path) && tokenizer_load(&quiet, path, &tokenizer) == STATUS_OK) {
        *own_tokenizer = (struct own_tokenizer){.found = true,
                                                .vocab = tokenizer_vocab(tokenizer),
                                                .print = source_tokenizer_fingerprint(tokenizer)};
        tokenizer_destroy(tokenizer);
    }
    log_destroy(quiet.log);
    mem_free(env, path);
    return st;
}

enum status model_tokenizer_compare(struct env *env, const struct model_source *source,
                                    int64_t model_vocab, const struct tokenizer *tokenizer,
                                    const char *name)
{
    struct own_tokenizer own;
    int size = tokenizer_vocab(tokenizer);
    TRY(load_own(env, source, &own));
    if (own.found && own.print != source_tokenizer_fingerprint(tokenizer))
        log_warn(env,
                 "the tokenizer '%s' (%d tokens) is not the one beside the model in '%s' (%d "
                 "tokens): its tokens mean something else to the model; leave it out to use "
                 "the model's own",
                 name, size, source->folder, own.vocab);
    else if (!own.found && size < model_vocab - model_vocab / 10) /* a vocabulary may be padded */
        log_warn(
            env,
            "the tokenizer '%s' has %d tokens and the model in '%s' %lld: it is hardly the one "
            "that the model was trained with",
            name, size, source->folder, (long long)model_vocab);
    return STATUS_OK;
}
