#include "train/data/data_digest.h"
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>
#include "base/file.h"

/* --- computing ------------------------------------------------------------------------------ */

/* Copy DATA_DIGEST_SAMPLE_BYTES from offset `at` of all files taken as one, across their
 * boundaries. Bytes beyond the end are zero. */
static void read_sample(const struct data_span *spans, int count, uint64_t at, uint8_t *out)
{
    size_t used = 0;
    memset(out, 0, DATA_DIGEST_SAMPLE_BYTES);
    for (int i = 0; i < count && used < DATA_DIGEST_SAMPLE_BYTES; i++) {
        if (at >= spans[i].bytes) {
            at -= spans[i].bytes;
            continue;
        }
        size_t part = DATA_DIGEST_SAMPLE_BYTES - used;
        if (part > spans[i].bytes - at)
            part = (size_t)(spans[i].bytes - at);
        memcpy(out + used, (const uint8_t *)spans[i].data + at, part);
        used += part;
        at = 0;
    }
}

static uint64_t hash_samples(const struct data_span *spans, int count, uint64_t bytes, int samples)
{
    uint8_t sample[DATA_DIGEST_SAMPLE_BYTES];
    uint64_t hash = 0, last = bytes > sizeof sample ? bytes - sizeof sample : 0;
    for (int i = 0; i < samples; i++) {
        uint64_t step = (uint64_t)(samples - 1);
        uint64_t at = last / step * (uint64_t)i + last % step * (uint64_t)i / step;
        read_sample(spans, count, at, sample);
        hash = XXH3_64bits_withSeed(sample, sizeof sample, hash);
    }
    return hash;
}

static uint64_t hash_times(const struct data_span *spans, int count)
{
    uint64_t hash = 1;
    for (int i = 0; i < count; i++) {
        struct stat info = {0};
        int64_t time[2] = {0};
        if (stat(spans[i].path, &info) == 0) {
            time[0] = info.st_mtim.tv_sec;
            time[1] = info.st_mtim.tv_nsec;
        }
        hash = XXH3_64bits_withSeed(time, sizeof time, hash);
    }
    return hash;
}

static uint64_t hash_whole(const struct data_span *spans, int count, uint64_t bytes)
{
    uint64_t hash = 0;
    if (count == 1)
        return XXH3_64bits(spans[0].data, bytes);
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return 0; /* matches no other hash: the data is reported as different */
    XXH3_64bits_reset(state);
    for (int i = 0; i < count; i++)
        XXH3_64bits_update(state, spans[i].data, spans[i].bytes);
    hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

struct data_digest data_digest_hashed(int files, uint64_t bytes, uint64_t hash)
{
    return (struct data_digest){.files = files, .whole_bytes = bytes, .hash = hash};
}

void data_digest_compute(const struct data_span *spans, int count, uint64_t whole,
                         struct data_digest *digest)
{
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += spans[i].bytes;
    if (bytes <= whole) {
        *digest = data_digest_hashed(count, bytes, hash_whole(spans, count, bytes));
        return;
    }
    *digest = (struct data_digest){.files = count,
                                   .sampled_bytes = bytes,
                                   .samples = DATA_DIGEST_SAMPLES,
                                   .hash = hash_samples(spans, count, bytes, DATA_DIGEST_SAMPLES),
                                   .more = hash_samples(spans, count, bytes, DATA_DIGEST_MORE),
                                   .times = hash_times(spans, count)};
}

static uint64_t join_hash(uint64_t a, uint64_t b)
{
    return a || b ? XXH3_64bits_withSeed(&b, sizeof b, a) : 0;
}

void data_digest_join(struct data_digest *all, const struct data_digest *source, int kind)
{
    const uint64_t sizes[] = {source->whole_bytes, source->sampled_bytes, source->hash};
    all->kinds = join_hash(all->kinds, (uint64_t)kind + 1);
    all->files += source->files;
    all->whole_bytes += source->whole_bytes;
    all->sampled_bytes += source->sampled_bytes;
    all->samples += source->samples;
    all->hash = XXH3_64bits_withSeed(sizes, sizeof sizes, all->hash);
    all->more = join_hash(all->more, source->more);
    all->times = join_hash(all->times, source->times);
}

/* --- files ---------------------------------------------------------------------------------- */

static enum status check_maps(struct env *env, const struct data_span *spans, int count)
{
    for (int i = 0; i < count; i++)
        TRY(file_map_check(env, spans[i].path, spans[i].data));
    return STATUS_OK;
}

/* `maps` and `spans` have room for all files of the list. */
static enum status digest_list(struct env *env, const struct path_list *list, struct file_map *maps,
                               struct data_span *spans, struct data_digest *digest)
{
    enum status st = STATUS_OK;
    int count = 0;
    while (count < list->count &&
           (st = file_map_open(env, list->paths[count], &maps[count])) == STATUS_OK) {
        spans[count] = (struct data_span){maps[count].data, maps[count].bytes, list->paths[count]};
        count++;
    }
    if (st == STATUS_OK) {
        data_digest_compute(spans, count, DATA_DIGEST_WHOLE, digest);
        st = check_maps(env, spans, count);
    }
    while (count > 0)
        file_map_close(&maps[--count]);
    return st;
}

/* Add the files of a source to the digest. */
static enum status join_files(struct env *env, const char *pattern, struct data_digest *all)
{
    struct path_list list;
    struct file_map *maps;
    struct data_span *spans;
    struct data_digest one;
    enum status st;
    TRY(path_glob(env, pattern, &list));
    TRY_OR(undo_list,
           mem_alloc_array(env, MEM_OTHER, "data files", (size_t)list.count, sizeof *maps, &maps));
    TRY_OR(undo_maps, mem_alloc_array(env, MEM_OTHER, "data spans", (size_t)list.count,
                                      sizeof *spans, &spans));
    st = digest_list(env, &list, maps, spans, &one);
    if (st == STATUS_OK)
        data_digest_join(all, &one, 0);
    mem_free(env, spans);
undo_maps:
    mem_free(env, maps);
undo_list:
    path_list_free(env, &list);
    return st;
}

enum status data_digest_files(struct env *env, const struct data_config *config,
                              enum data_part part, struct data_digest *digest)
{
    struct data_plan plan;
    *digest = (struct data_digest){0};
    TRY(data_plan_make(env, config, &plan));
    if (part == DATA_PART_HELD_OUT)
        return plan.val ? join_files(env, plan.val, digest) : STATUS_OK;
    for (int i = 0; i < plan.count; i++)
        TRY(join_files(env, data_plan_item(config, i).path, digest));
    return STATUS_OK;
}

/* --- comparing ------------------------------------------------------------------------------ */

static void describe(const struct data_digest *digest, bool more, struct text *text)
{
    char size[32];
    text_printf(text, "%" PRId64 " file%s", digest->files, digest->files == 1 ? "" : "s");
    if (digest->whole_bytes > 0)
        text_printf(text, ", %s hashed whole", text_human_bytes(size, (double)digest->whole_bytes));
    if (digest->samples > 0)
        text_printf(text, ", %s by size and %" PRId64 " samples of 4 KiB",
                    text_human_bytes(size, (double)digest->sampled_bytes), digest->samples);
    if (more)
        text_printf(text, ", and %" PRId64 " more because the times of files have changed",
                    digest->samples / DATA_DIGEST_SAMPLES * DATA_DIGEST_MORE);
}

enum data_verdict data_digest_compare(const struct data_digest *there,
                                      const struct data_digest *here, struct text *compared)
{
    if (there->files == 0 || here->files == 0 || there->kinds != here->kinds)
        return DATA_UNKNOWN;
    bool sizes = there->whole_bytes == here->whole_bytes &&
                 there->sampled_bytes == here->sampled_bytes && there->samples == here->samples;
    bool more = sizes && there->hash == here->hash && there->times != here->times;
    describe(here, more, compared);
    if (!sizes || there->hash != here->hash)
        return DATA_DIFFERS;
    return more && there->more != here->more ? DATA_DIFFERS : DATA_SAME;
}
