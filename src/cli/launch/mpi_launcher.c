/* mpi_launcher -- the most common mistake is the mpirun of another MPI library: it starts N
 * processes that do not find each other. Debian's /usr/bin/mpirun belongs to the library with the
 * highest priority among those installed. So the name tells nothing, and `--version` is read
 * instead.
 *
 * Four defaults of Open MPI do not suit us; each is changed unless the user has set it. Open MPI
 * refuses to run as root, refuses more ranks than slots, binds each rank to one core if there are
 * two ranks (so that all threads of a rank share that core), and copies between processes in a way
 * that containers forbid.
 */
#include "cli/launch/launch.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "comm/comm.h"

#ifndef SIFR_MPIEXEC /* set by the build: the launcher found when it was configured */
#define SIFR_MPIEXEC ""
#endif

enum { ANSWER_BYTES = 512 };

/* --- finding the launcher ------------------------------------------------------------------- */

/* "Open MPI v4.1.4" and "MPICH Version: 4.0.2" become a name and a number. */
static void name_mpi(struct mpi_launcher *launcher)
{
    char text[64];
    comm_mpi_library(text, sizeof text);
    launcher->kind = strncmp(text, "Open MPI", 8) == 0 ? MPI_KIND_OPEN : MPI_KIND_HYDRA;
    size_t name_bytes = strcspn(text, "0123456789");
    const char *number = text + name_bytes;
    const char *noise = strstr(text, " Version");
    if (noise && noise < number)
        name_bytes = (size_t)(noise - text);
    while (name_bytes > 0 && (text[name_bytes - 1] == ' ' || text[name_bytes - 1] == 'v'))
        name_bytes--;
    snprintf(launcher->mpi, sizeof launcher->mpi, "%.*s%s%s", (int)name_bytes, text,
             *number ? " " : "", number);
}

/* The path of a program. A name without a slash is searched in PATH as a shell does, but only in
 * absolute folders: an empty or relative entry depends on the current folder. */
static bool find_program(const char *name, char path[MPI_LAUNCHER_PATH])
{
    const char *folders = getenv("PATH");
    bool named = strchr(name, '/') != NULL;
    snprintf(path, MPI_LAUNCHER_PATH, "%s", name);
    if (named || !folders || !*name)
        return named && strlen(name) < MPI_LAUNCHER_PATH;
    while (*folders) {
        int bytes = (int)strcspn(folders, ":");
        int length = snprintf(path, MPI_LAUNCHER_PATH, "%.*s/%s", bytes, folders, name);
        if (*folders == '/' && length < MPI_LAUNCHER_PATH && access(path, X_OK) == 0)
            return true;
        folders += bytes;
        folders += *folders == ':';
    }
    return false;
}

/* The beginning of what `PROGRAM --version` prints. */
static bool ask_version(const char *program, char *answer)
{
    int ends[2];
    size_t used = 0;
    ssize_t bytes;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, STDIN_FILENO);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        execl(program, program, "--version", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    while (child > 0 && used < ANSWER_BYTES - 1 &&
           (bytes = read(ends[0], answer + used, ANSWER_BYTES - 1 - used)) > 0)
        used += (size_t)bytes;
    close(ends[0]);
    answer[used] = 0;
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return child > 0 && used > 0;
}

/* Is the program `name` a launcher of our MPI? Sets launcher->path. *runs: it could be run and
 * printed a version. */
static bool belongs(struct mpi_launcher *launcher, const char *name, bool *runs)
{
    char answer[ANSWER_BYTES];
    *runs = find_program(name, launcher->path) && ask_version(launcher->path, answer);
    if (!*runs)
        return false;
    if (launcher->kind == MPI_KIND_OPEN)
        return strstr(answer, "Open MPI") || strstr(answer, "OpenRTE");
    return strstr(answer, "HYDRA") || strstr(answer, "Intel(R) MPI");
}

/* Try only the launcher that SIFR_MPIRUN names. */
static bool look_at_named(const char *chosen, struct mpi_launcher *launcher, char *why,
                          size_t bytes)
{
    launcher->named = strcmp(chosen, "none") != 0;
    if (!launcher->named) {
        snprintf(why, bytes, "SIFR_MPIRUN is 'none', so no mpirun is looked for");
        return false;
    }
    bool runs;
    if (belongs(launcher, chosen, &runs))
        return true;
    snprintf(why, bytes, "SIFR_MPIRUN is '%s', which %s %s, the library of this sifr", chosen,
             runs ? "is no launcher of" : "cannot be run, so is no launcher of", launcher->mpi);
    return false;
}

bool mpi_launcher_look(struct mpi_launcher *launcher, char *why, size_t bytes)
{
    const char *chosen = getenv("SIFR_MPIRUN");
    bool runs;
    *launcher = (struct mpi_launcher){0};
    name_mpi(launcher);
    bool is_open = launcher->kind == MPI_KIND_OPEN;
    const char *const names[] = {SIFR_MPIEXEC, is_open ? "mpirun.openmpi" : "mpirun.mpich",
                                 "mpirun", "mpiexec"};
    if (chosen && *chosen)
        return look_at_named(chosen, launcher, why, bytes);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (belongs(launcher, names[i], &runs))
            return true;
    }
    snprintf(why, bytes,
             "this sifr is linked with %s, and no mpirun of that library is found (tried '%s', "
             "%s, mpirun, mpiexec)",
             launcher->mpi, names[0], names[1]);
    return false;
}

enum status mpi_launcher_find(struct env *env, struct mpi_launcher *launcher)
{
    char why[MPI_LAUNCHER_WHY];
    if (mpi_launcher_look(launcher, why, sizeof why))
        return STATUS_OK;
    if (launcher->named)
        return FAIL(env, CONFIG, "%s", why);
    return FAIL(env, CONFIG,
                "%s; install one, or name it in SIFR_MPIRUN; on one machine comm.backend=threads "
                "needs none",
                why);
}

/* --- calling the launcher ------------------------------------------------------------------- */

static void prepare_open_mpi(void)
{
    if (geteuid() == 0) {
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    }
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0); /* Open MPI 5 */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    /* May a process read another's memory? Containers often forbid the system call. */
    char from = 1, to = 0;
    struct iovec local = {&to, 1}, remote = {&from, 1};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != 1) {
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
        setenv("OMPI_MCA_smsc", "^cma", 0); /* Open MPI 5 */
    }
}

/* Open MPI passes only named variables to other machines: those of sifr, OMP_NUM_THREADS, which
 * ranks take their threads from, and OPENBLAS_CORETYPE, which all ranks must agree on. */
static bool is_passed(const char *variable)
{
    return (strncmp(variable, "SIFR_", 5) == 0 && strchr(variable, '=')) ||
           strncmp(variable, "OMP_NUM_THREADS=", 16) == 0 ||
           strncmp(variable, "OPENBLAS_CORETYPE=", 18) == 0;
}

/* "-x NAME" for each of them */
static size_t add_variables(char **all)
{
    size_t used = 0;
    for (char **variable = environ; *variable; variable++) {
        if (!is_passed(*variable))
            continue;
        all[used++] = "-x";
        all[used++] = strndup(*variable, strcspn(*variable, "="));
    }
    return used;
}

void mpi_launcher_exec(const struct mpi_launcher *launcher, int ranks, char *const *argv)
{
    char count[16];
    size_t given = 0, variables = 0, used = 0;
    while (argv[given])
        given++;
    while (environ[variables])
        variables++;
    char **all = calloc(6 + 2 * variables + given, sizeof *all);
    if (!all)
        return;
    snprintf(count, sizeof count, "%d", ranks);
    all[used++] = (char *)launcher->path;
    all[used++] = "-n";
    all[used++] = count;
    if (launcher->kind == MPI_KIND_OPEN) { /* Hydra binds no ranks and passes on all variables */
        prepare_open_mpi();
        all[used++] = "--bind-to";
        all[used++] = "none";
        used += add_variables(all + used);
    }
    memcpy(all + used, argv, given * sizeof *all);
    execv(launcher->path, all); /* exec frees what was allocated */
}
