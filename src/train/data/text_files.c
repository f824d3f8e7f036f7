/* text_files.c -- maps the files of a pattern, checks that they are text, and finds the cut. */
#include "train/data/text_files.h"
#include <stdio.h>
#include <string.h>
#include "base/text.h"
#include "train/data/shard.h"

#define LOOK_BYTES ((size_t)64 << 10) /* of a file, searched for NUL bytes */
#define UTF8_BYTES ((size_t)16 << 20) /* of a file, checked for UTF-8; takes milliseconds */

/* --- is it text? ---------------------------------------------------------------------------- */

/* Formats that text is often packed in or stored next to. Text never has these bytes at this
 * offset. */
static const struct packing {
    size_t at;
    const char *magic;
    size_t bytes;
    const char *what, *advice;
} PACKINGS[] = {
#define MAGIC_AT(at, string) at, string, sizeof string - 1
#define MAGIC(string)        MAGIC_AT(0, string)
    {MAGIC("\x1f\x8b\x08"), "compressed by gzip", "unpack it first (gunzip -k)"},
    {MAGIC("\x28\xb5\x2f\xfd"), "compressed by zstd", "unpack it first (zstd -d)"},
    {MAGIC("\xfd\x37zXZ\0"), "compressed by xz", "unpack it first (xz -dk)"},
    {MAGIC("BZh91AY&SY"), "compressed by bzip2", "unpack it first (bunzip2 -k)"},
    {MAGIC("\x04\x22\x4d\x18"), "compressed by lz4", "unpack it first (lz4 -d)"},
    {MAGIC("PK\3\4"), "a zip archive", "unpack it first (unzip)"},
    {MAGIC("7z\xbc\xaf\x27\x1c"), "a 7z archive", "unpack it first (7z x)"},
    {MAGIC_AT(257, "ustar\0"), "a tar archive", "unpack it first (tar xf)"},
    {MAGIC_AT(257, "ustar  \0"), "a tar archive", "unpack it first (tar xf)"}, /* GNU tar */
    {MAGIC("!<arch>\n"), "an ar archive", "unpack it first (ar x)"},
    {MAGIC("PAR1\x15"), "a Parquet file", "write what it holds as JSON lines first"},
    {MAGIC("ARROW1\0\0"), "an Arrow file", "write what it holds as JSON lines first"},
    {MAGIC("%PDF-"), "a PDF", "take its text out first (pdftotext)"},
    {MAGIC("\xff\xfe\0\0"), "UTF-32", "convert it first (iconv -f UTF-32 -t UTF-8)"},
    {MAGIC("\0\0\xfe\xff"), "UTF-32", "convert it first (iconv -f UTF-32 -t UTF-8)"},
    {MAGIC("\xff\xfe"), "UTF-16", "convert it first (iconv -f UTF-16 -t UTF-8)"},
    {MAGIC("\xfe\xff"), "UTF-16", "convert it first (iconv -f UTF-16 -t UTF-8)"},
    {MAGIC("\x89PNG\r\n\x1a\n"), "an image (PNG)", "leave it out"},
    {MAGIC("\xff\xd8\xff"), "an image (JPEG)", "leave it out"},
    {MAGIC_AT(4, "\0\0\0\0{\""), "a safetensors file", "a model is named by model.path"},
#undef MAGIC
#undef MAGIC_AT
};

enum status text_file_check(struct env *env, const char *path, const struct file_map *map)
{
    for (size_t i = 0; i < sizeof PACKINGS / sizeof *PACKINGS; i++) {
        const struct packing *packing = &PACKINGS[i];
        if (map->bytes >= packing->at + packing->bytes &&
            memcmp(map->data + packing->at, packing->magic, packing->bytes) == 0)
            return FAIL(env, FORMAT, "'%s' is %s, and is not read as text; %s", path, packing->what,
                        packing->advice);
    }
    return STATUS_OK;
}

/* Offset of the first byte that is not UTF-8; `bytes` = none. A character that the end cuts off is
 * accepted. */
static size_t first_not_utf8(const uint8_t *data, size_t bytes)
{
    const char *text = (const char *)data;
    size_t at = 0, end = bytes - text_unfinished(text, bytes);
    while (at < end) {
        uint64_t eight;
        uint32_t code;
        if (end - at >= sizeof eight) {
            memcpy(&eight, data + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t length = text_utf8(text + at, end - at, &code);
        if (length == 0)
            return at;
        at += length;
    }
    return bytes;
}

static enum status look(struct env *env, const struct text_file *file, struct text_files *files)
{
    const struct file_map *map = &file->map;
    TRY(text_file_check(env, file->path, map));
    if (shard_is_llmc(map->data, map->bytes)) /* data.format=text or jsonl was given */
        return FAIL(env, FORMAT,
                    "'%s' is a token shard and is not read as text; name it separately",
                    file->path);
    size_t bytes = map->bytes < LOOK_BYTES ? map->bytes : LOOK_BYTES;
    if (bytes > 0 && memchr(map->data, 0, bytes)) {
        if (files->binary_count++ == 0)
            files->binary = file->path;
        return STATUS_OK;
    }
    bytes = map->bytes < UTF8_BYTES ? map->bytes : UTF8_BYTES;
    size_t at = bytes > 0 ? first_not_utf8(map->data, bytes) : 0;
    if (at < bytes && files->latin_count++ == 0) {
        files->latin = file->path;
        files->latin_at = at;
        files->latin_byte = map->data[at];
    }
    return STATUS_OK;
}

void text_files_tell_binary(struct env *env, const struct text_files *files)
{
    int more = files->binary_count - 1;
    char others[48] = "";
    if (files->latin_count > 1)
        snprintf(others, sizeof others, " (and %d more such files)", files->latin_count - 1);
    if (files->latin_count > 0)
        log_warn(
            env,
            "'%s' is not UTF-8: byte 0x%02x at offset %zu%s; it is read as it stands; convert it "
            "first if it is text (iconv -f ISO-8859-1 -t UTF-8)",
            files->latin, files->latin_byte, files->latin_at, others);
    if (more == 0)
        log_warn(env,
                 "'%s' has NUL bytes in its first 64 KiB: it may not be UTF-8 text, and is read as "
                 "it stands",
                 files->binary);
    else if (more > 0)
        log_warn(env,
                 "'%s' and %d more have NUL bytes in their first 64 KiB: they may not be UTF-8 "
                 "text, and are read as they stand",
                 files->binary, more);
}

/* --- the cut -------------------------------------------------------------------------------- */

/* The first offset at or after `from` where a line begins. If there is none, the end of the file
 * with `whole_lines`, otherwise the first offset where a character begins. */
static size_t cut_after(const struct file_map *map, size_t from, bool whole_lines)
{
    if (from == 0)
        return 0;
    const uint8_t *newline = memchr(map->data + from - 1, '\n', map->bytes - from + 1);
    size_t cut = newline ? (size_t)(newline - map->data) + 1 : map->bytes;
    if (cut < map->bytes || whole_lines)
        return cut;
    /* No line begins after `from`. Skip UTF-8 continuation bytes, so that no character is cut. */
    while (from < map->bytes && (map->data[from] & 0xc0) == 0x80)
        from++;
    return from;
}

static void set_cuts(struct text_files *files, double split, bool whole_lines)
{
    size_t validation = (size_t)((double)files->bytes * split);
    size_t target = files->bytes - validation, before = 0; /* bytes in earlier files */
    for (int i = 0; i < files->count; i++) {
        struct text_file *file = &files->files[i];
        if (before + file->map.bytes <= target)
            file->cut = file->map.bytes;
        else
            file->cut = before >= target ? 0 : cut_after(&file->map, target - before, whole_lines);
        before += file->map.bytes;
    }
}

/* --- the files ------------------------------------------------------------------------------ */

static enum status map_all(struct env *env, const char *pattern, struct text_files *files)
{
    TRY(path_glob(env, pattern, &files->paths));
    TRY(mem_alloc_array(env, MEM_LOADER, "text files", (size_t)files->paths.count,
                        sizeof *files->files, &files->files));
    for (int i = 0; i < files->paths.count; i++) {
        struct text_file *file = &files->files[i];
        file->path = files->paths.paths[i];
        TRY(file_map_open(env, file->path, &file->map));
        files->bytes += file->map.bytes;
        files->count++;
        TRY(look(env, file, files));
    }
    if (files->bytes == 0)
        return FAIL(env, FORMAT, "'%s' is empty", pattern);
    return STATUS_OK;
}

enum status text_files_open(struct env *env, const char *pattern, double split, bool whole_lines,
                            struct text_files *files)
{
    struct text_files f = {0};
    enum status st;
    TRY_OR(undo_files, map_all(env, pattern, &f));
    set_cuts(&f, split, whole_lines);
    *files = f;
    return STATUS_OK;
undo_files:
    text_files_close(env, &f);
    return st;
}

void text_files_close(struct env *env, struct text_files *files)
{
    for (int i = 0; i < files->count; i++)
        file_map_close(&files->files[i].map);
    mem_free(env, files->files);
    path_list_free(env, &files->paths);
    *files = (struct text_files){0};
}
