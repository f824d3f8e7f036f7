/* dataset.c -- maps sample n to a window.
 *
 *     n --mix----> (source, k)   a table of MIX_SLOTS slots, repeated: the number of slots of a
 *                                source follows its weight, and the seed scatters them; k counts
 *                                the samples of the source
 *     k --epoch--> (epoch, i)    epoch = k / windows, i = k mod windows
 *       --order--> window        a permutation of the windows, different in every epoch
 *       --range--> first token   offset of the epoch + window * context
 *
 * A stream of N tokens has P = N - 1 predictions and W = max(1, (P - T + 1) / T) windows of T
 * tokens. They fit with any offset of the epoch, which is at most T - 1 (less if the stream is
 * shorter than two windows). So an epoch omits fewer than 2 T predictions, and which ones changes
 * with every epoch.
 */
#include "train/data/dataset.h"
#include <stdio.h>
#include <string.h>
#include "base/rng.h"

#define MIX_SLOTS 4096

struct member { /* a training source */
    struct source *source;
    const struct token_stream *stream;
    double weight;
    int64_t slots;   /* of MIX_SLOTS */
    int64_t windows; /* per epoch */
    int64_t offsets; /* number of possible offsets of an epoch */
    struct rng order, offset;
};

struct slot {
    uint16_t member;
    uint16_t rank; /* number of earlier slots of the same member */
};

struct held_out { /* a stream to evaluate on */
    const struct token_stream *stream;
    int64_t windows;
    int64_t predictions; /* labels that are not masked */
};

struct dataset {
    struct env *env; /* borrowed */
    int64_t vocab, context;
    struct member *members;
    int member_count;
    struct slot *mix; /* MIX_SLOTS */
    struct source *val;
    struct held_out *held_out;
    int held_out_count;
    uint32_t *token_lengths; /* bytes of text of each token; NULL = unknown */
};

/* --- the mix -------------------------------------------------------------------------------- */

/* Assign slots by weight: each slot goes to the member that is furthest below its share. */
static enum status share_slots(struct dataset *set)
{
    double sum = 0;
    for (int m = 0; m < set->member_count; m++)
        sum += set->members[m].weight;
    for (int slot = 1; slot <= MIX_SLOTS; slot++) {
        struct member *neediest = NULL;
        double need = 0;
        for (int m = 0; m < set->member_count; m++) {
            struct member *member = &set->members[m];
            double behind = member->weight / sum * slot - (double)member->slots;
            if (!neediest || behind > need) {
                neediest = member;
                need = behind;
            }
        }
        neediest->slots++;
    }
    for (int m = 0; m < set->member_count; m++)
        if (set->members[m].slots == 0)
            return FAIL(set->env, CONFIG, "data.mix: the weight of '%s' is under 1/%d of the sum",
                        set->members[m].source->path, MIX_SLOTS);
    return STATUS_OK;
}

static enum status mix_create(struct dataset *set, uint64_t seed)
{
    struct rng scatter = rng_stream(seed, "data.mix");
    uint64_t next = 0;
    TRY(share_slots(set));
    TRY(mem_alloc_array(set->env, MEM_LOADER, "mix", MIX_SLOTS, sizeof *set->mix, &set->mix));
    for (int m = 0; m < set->member_count; m++)
        for (int64_t i = 0; i < set->members[m].slots; i++)
            set->mix[rng_permute(scatter, next++, MIX_SLOTS)].member = (uint16_t)m;
    /* Ranks follow the order of the table, so that the samples of a source occur in order. */
    for (int m = 0; m < set->member_count; m++)
        for (int slot = 0, rank = 0; slot < MIX_SLOTS; slot++)
            if (set->mix[slot].member == m)
                set->mix[slot].rank = (uint16_t)rank++;
    return STATUS_OK;
}

/* --- sources -------------------------------------------------------------------------------- */

static enum status member_init(struct dataset *set, int index, uint64_t seed)
{
    struct member *member = &set->members[index];
    int64_t T = set->context, predictions = member->source->train.count - 1;
    member->stream = &member->source->train;
    if (predictions < T)
        return FAIL(
            set->env, CONFIG,
            "the context of %lld is longer than the data: '%s' has %lld tokens to train on, "
            "a window needs %lld; lower train.context, or give more data",
            (long long)T, member->source->path, (long long)member->stream->count, (long long)T + 1);
    member->windows = (predictions - T + 1) / T;
    if (member->windows == 0)
        member->windows = 1;
    member->offsets = predictions - member->windows * T + 1;
    if (member->offsets > T)
        member->offsets = T;
    char name[64];
    snprintf(name, sizeof name, "data.order.%d", index);
    member->order = rng_stream(seed, name);
    snprintf(name, sizeof name, "data.offset.%d", index);
    member->offset = rng_stream(seed, name);
    return STATUS_OK;
}

static void add_held_out(struct dataset *set, const struct token_stream *stream)
{
    if (stream->count < 2)
        return;
    struct held_out *held_out = &set->held_out[set->held_out_count++];
    held_out->stream = stream;
    held_out->windows = (stream->count - 1 + set->context - 1) / set->context;
    held_out->predictions = stream->count - 1;
    for (int64_t i = 1; i < stream->count && stream->mask; i++)
        held_out->predictions -= token_stream_masked(stream, i);
}

static enum status load_members(struct dataset *set, const struct data_config *config,
                                const struct data_plan *plan, const struct source_spec *common,
                                uint64_t seed)
{
    struct env *env = set->env;
    TRY(mem_alloc_array(env, MEM_LOADER, "sources", (size_t)plan->count, sizeof *set->members,
                        &set->members));
    for (int i = 0; i < plan->count; i++) {
        struct data_mix_item item = data_plan_item(config, i);
        struct source_spec spec = *common;
        spec.path = item.path;
        spec.format = (enum data_format)item.format;
        spec.split = plan->split;
        TRY(source_create(env, &spec, &set->members[i].source));
        set->members[i].weight = item.weight;
        set->member_count++;
        TRY(member_init(set, i, seed));
        add_held_out(set, &set->members[i].source->held_out);
        log_debug(env, "data '%s': %lld tokens to train on in %lld windows", item.path,
                  (long long)set->members[i].stream->count, (long long)set->members[i].windows);
    }
    return plan->count > 1 ? mix_create(set, seed) : STATUS_OK;
}

/* All sources with a known tokenizer must have the same one, and it must be that of the run. */
static enum status check_tokenizers(const struct dataset *set, const struct tokenizer *tokenizer)
{
    uint64_t fingerprint = tokenizer ? source_tokenizer_fingerprint(tokenizer) : 0;
    const char *first = NULL; /* the source of the fingerprint; NULL = data.tokenizer */
    int token_bytes = 0;
    for (int i = 0; i <= set->member_count; i++) {
        const struct source *source = i < set->member_count ? set->members[i].source : set->val;
        if (!source)
            continue;
        if (!fingerprint && source->fingerprint) {
            fingerprint = source->fingerprint;
            first = source->path;
        }
        if (source->fingerprint && source->fingerprint != fingerprint)
            return FAIL(set->env, CONFIG,
                        "mixed tokenizers: '%s' was made with another one than '%s'", source->path,
                        first ? first : "data.tokenizer");
        if (token_bytes && source->token_bytes && token_bytes != source->token_bytes)
            return FAIL(set->env, CONFIG,
                        "mixed tokenizers: tokens of '%s' have %d bytes, others have %d",
                        source->path, source->token_bytes, token_bytes);
        if (source->token_bytes)
            token_bytes = source->token_bytes;
    }
    return STATUS_OK;
}

static enum status load(struct dataset *set, const struct data_config *config,
                        const struct tokenizer *tokenizer, uint64_t seed)
{
    struct data_plan plan;
    struct source_spec common = {.special = config->special,
                                 .tokenizer = tokenizer,
                                 .vocab = set->vocab,
                                 .cache = config->cache};
    TRY(data_plan_make(set->env, config, &plan));
    if (tokenizer && tokenizer_vocab(tokenizer) > set->vocab)
        return FAIL(set->env, CONFIG, "the tokenizer has %d tokens but model.vocab is %lld",
                    tokenizer_vocab(tokenizer), (long long)set->vocab);
    TRY(mem_alloc_array(set->env, MEM_LOADER, "sources", (size_t)plan.count + 1,
                        sizeof *set->held_out, &set->held_out));
    TRY(load_members(set, config, &plan, &common, seed));
    if (plan.val) {
        common.path = plan.val;
        common.format = (enum data_format)config->format;
        TRY(source_create(set->env, &common, &set->val));
        add_held_out(set, &set->val->train);
    }
    TRY(check_tokenizers(set, tokenizer));
    if (!tokenizer)
        return STATUS_OK;
    TRY(mem_alloc_array(set->env, MEM_LOADER, "token lengths", (size_t)set->vocab,
                        sizeof *set->token_lengths, &set->token_lengths));
    for (int32_t id = 0; id < tokenizer_vocab(tokenizer); id++) {
        size_t bytes = 0;
        bool text = id != tokenizer_eot(tokenizer) && id != tokenizer_special(tokenizer)->begin;
        if (text && tokenizer_token(tokenizer, id, &bytes))
            set->token_lengths[id] = (uint32_t)bytes;
    }
    return STATUS_OK;
}

enum status dataset_create(struct env *env, const struct data_config *config,
                           const struct tokenizer *tokenizer, int64_t vocab, int64_t context,
                           uint64_t seed, struct dataset **dataset)
{
    struct dataset *set;
    enum status st;
    CHECK(vocab > 0 && context > 0);
    TRY(mem_alloc(env, MEM_LOADER, "dataset", sizeof *set, &set));
    set->env = env;
    set->vocab = vocab;
    set->context = context;
    TRY_OR(undo_set, load(set, config, tokenizer, seed));
    *dataset = set;
    return STATUS_OK;
undo_set:
    dataset_destroy(set);
    return st;
}

void dataset_destroy(struct dataset *set)
{
    if (!set)
        return;
    struct env *env = set->env;
    for (int i = 0; i < set->member_count; i++)
        source_destroy(set->members[i].source);
    source_destroy(set->val);
    mem_free(env, set->token_lengths);
    mem_free(env, set->held_out);
    mem_free(env, set->mix);
    mem_free(env, set->members);
    mem_free(env, set);
}

uint64_t dataset_mapped_bytes(const struct dataset *set)
{
    uint64_t bytes = set->val ? source_mapped_bytes(set->val) : 0;
    for (int i = 0; i < set->member_count; i++)
        bytes += source_mapped_bytes(set->members[i].source);
    return bytes;
}

enum status dataset_digest(const struct dataset *set, struct data_digest *digest)
{
    *digest = (struct data_digest){0};
    for (int i = 0; i <= set->member_count; i++) {
        const struct source *source = i < set->member_count ? set->members[i].source : set->val;
        struct data_digest one;
        int kind;
        if (!source)
            continue;
        TRY(source_digest(source, &one, &kind));
        data_digest_join(digest, &one, kind);
    }
    return STATUS_OK;
}

enum status dataset_prune_cache(const struct dataset *set, const char *folder)
{
    struct token_cache_key *keys;
    int count = 0;
    TRY(mem_alloc_array(set->env, MEM_LOADER, "cache keys", (size_t)set->member_count + 1,
                        sizeof *keys, &keys));
    for (int i = 0; i < set->member_count; i++)
        count += source_cache_key(set->members[i].source, &keys[count]);
    if (set->val)
        count += source_cache_key(set->val, &keys[count]);
    if (count > 0)
        token_cache_prune(folder, keys, count);
    mem_free(set->env, keys);
    return STATUS_OK;
}

/* --- samples -------------------------------------------------------------------------------- */

int64_t dataset_train_tokens(const struct dataset *set)
{
    int64_t tokens = 0;
    for (int i = 0; i < set->member_count; i++)
        tokens += set->members[i].stream->count;
    return tokens;
}

int64_t dataset_train_windows(const struct dataset *set)
{
    int64_t windows = 0;
    for (int i = 0; i < set->member_count; i++)
        windows += set->members[i].windows;
    return windows;
}

enum status dataset_sample(const struct dataset *set, uint64_t sample, int32_t *tokens,
                           int32_t *labels)
{
    CHECK(set->member_count > 0);
    const struct member *member = &set->members[0];
    uint64_t k = sample;
    if (set->mix) {
        struct slot slot = set->mix[sample % MIX_SLOTS];
        member = &set->members[slot.member];
        k = sample / MIX_SLOTS * (uint64_t)member->slots + slot.rank;
    }
    uint64_t windows = (uint64_t)member->windows, epoch = k / windows;
    struct rng order = {.key = rng_bits(member->order, epoch)};
    uint64_t window = rng_permute(order, k % windows, windows);
    uint64_t offset = rng_below(member->offset, epoch, (uint64_t)member->offsets);
    int64_t first = (int64_t)(offset + window * (uint64_t)set->context);
    return token_stream_window(member->stream, set->env, first, set->context, set->vocab, tokens,
                               labels);
}

/* --- held-out windows ----------------------------------------------------------------------- */

int64_t dataset_eval_count(const struct dataset *set)
{
    int64_t windows = 0;
    for (int i = 0; i < set->held_out_count; i++)
        windows += set->held_out[i].windows;
    return windows;
}

int64_t dataset_eval_tokens(const struct dataset *set)
{
    int64_t tokens = 0;
    for (int i = 0; i < set->held_out_count; i++)
        tokens += set->held_out[i].predictions;
    return tokens;
}

int64_t dataset_eval_longest(const struct dataset *set)
{
    int64_t longest = 0;
    for (int i = 0; i < set->held_out_count; i++) {
        int64_t tokens = set->held_out[i].stream->count - 1;
        longest = tokens > longest ? tokens : longest;
    }
    return longest < set->context ? longest : set->context;
}

enum status dataset_eval_window(const struct dataset *set, int64_t i, int32_t *tokens,
                                int32_t *labels, int64_t *bytes)
{
    const struct held_out *held_out = set->held_out;
    CHECK(i >= 0 && i < dataset_eval_count(set));
    for (; i >= held_out->windows; held_out++)
        i -= held_out->windows;
    int64_t first = i * set->context, left = held_out->stream->count - 1 - first;
    int64_t count = left < set->context ? left : set->context;
    TRY(token_stream_window(held_out->stream, set->env, first, count, set->vocab, tokens, labels));
    for (int64_t t = count; t < set->context; t++) {
        tokens[t] = 0;
        labels[t] = -1;
    }
    *bytes = 0;
    for (int64_t t = 0; t < count && set->token_lengths; t++)
        if (labels[t] >= 0)
            *bytes += set->token_lengths[labels[t]];
    return STATUS_OK;
}
