/* Pretends to be libnvidia-ml.so.1, for tests with the real binding.
 *
 * Each call reads the file that FAKE_NVML_STATE names, so that a test changes the machine by replacing that
 * file. One line each, fields by name, sizes in bytes:
 *
 *   init CODE                      what opening the library, and then each call, answers
 *   card SLOT [FIELD=VALUE ...]    a GPU at that index; names have _ for spaces
 *   part SLOT.NUMBER [FIELD=...]   a MIG instance of it
 *   use SLOT[.NUMBER] PID BYTES    a process; BYTES is na where the driver does not tell; a fourth word
 *                                  `graphics` puts it into the other list
 *   end                            without this line every call answers HALF_WRITTEN
 *
 * Fields: name uuid bus total free; mig=1; lag=N (free is that of N calls ago); and error codes to answer:
 * handle, info (name, UUID and address), mem, mem2 (its newer version), procs.
 *
 * FAKE_NVML_LEDGER names a file in which processes keep account of what they hold: with it, free memory and
 * processes are read from there, `lagms` late, processes `pidlagms` later still (-1: never). A process takes
 * memory by fake_take, which kills it if there is not so much. Lines: seconds on the monotonic clock, slot,
 * process (0: others; negative: it was killed for asking so much), bytes that it holds from then on.
 *
 * FAKE_NVML_TOUCHED names a file that gets the address of each card that a real driver would wake, and lines
 * `open` and `close`. With OLD_DRIVER defined, the functions of newer drivers are left out.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_FOUND = 6, TOO_SMALL = 7, MISMATCH = 25 };
enum { HALF_WRITTEN = 888 };
enum { CARDS = 32, PARTS = 8, UNITS = CARDS * (PARTS + 1), USES = 64, PAST = 256, LINES = 8192 };

typedef unsigned long long u64;
typedef struct { int unit; } *Handle;
typedef struct {
    int exists, handle, info, mem, mem2, procs, mig, lag, lagms, pidlagms;
    char name[96], uuid[96], bus[32];
    u64 total, free;
} Unit;
typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } Process;
typedef struct { int unit, graphics; Process process; } Use;

static struct { int unit; } handles[UNITS];
static u64 past[UNITS][PAST];
static int calls[UNITS];
static int opened;

static struct { int init, cards, uses; Unit unit[UNITS]; Use use[USES]; } now;

/* The cards come first, then each card's parts. */
static int unit_of(int card, int part) { return part < 0 ? card : CARDS + card * PARTS + part; }

static int place(const char *word) {
    int card = -1, part = -1;
    if (sscanf(word, "%d.%d", &card, &part) < 1 || card < 0 || card >= CARDS || part >= PARTS) abort();
    return unit_of(card, part);
}

static void set(Unit *unit, const char *key, const char *value) {
    struct { const char *key; int *number; } numbers[] = {
        {"handle", &unit->handle}, {"info", &unit->info}, {"mem", &unit->mem}, {"mem2", &unit->mem2},
        {"procs", &unit->procs}, {"mig", &unit->mig}, {"lag", &unit->lag},
        {"lagms", &unit->lagms}, {"pidlagms", &unit->pidlagms},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!strcmp(key, numbers[i].key)) { *numbers[i].number = atoi(value); return; }
    if (!strcmp(key, "total")) unit->total = strtoull(value, 0, 10);
    else if (!strcmp(key, "free")) unit->free = strtoull(value, 0, 10);
    else if (!strcmp(key, "uuid")) snprintf(unit->uuid, sizeof unit->uuid, "%s", value);
    else if (!strcmp(key, "bus")) snprintf(unit->bus, sizeof unit->bus, "%s", value);
    else if (!strcmp(key, "name")) {
        snprintf(unit->name, sizeof unit->name, "%s", value);
        for (char *c = unit->name; *c; c++) if (*c == '_') *c = ' ';
    } else abort();
}

static void line_of_state(char *line) {
    char *kind = strtok(line, " "), *word = strtok(0, " ");
    if (!strcmp(kind, "init")) now.init = atoi(word);
    else if (!strcmp(kind, "card") || !strcmp(kind, "part")) {
        int index = place(word);
        now.unit[index].exists = 1;
        if (index < CARDS && index >= now.cards) now.cards = index + 1;
        while ((word = strtok(0, " "))) {
            char *value = strchr(word, '=');
            if (!value) abort();
            *value++ = 0;
            set(&now.unit[index], word, value);
        }
    } else if (!strcmp(kind, "use") && now.uses < USES) {
        Use *use = &now.use[now.uses++];
        use->unit = place(word);
        use->process.pid = (unsigned)atoi(strtok(0, " "));
        word = strtok(0, " ");
        use->process.bytes = strcmp(word, "na") ? strtoull(word, 0, 10) : ~0ULL;
        use->process.gpu_instance = use->process.compute_instance = ~0U;
        use->graphics = strtok(0, " ") != 0;
    } else abort();
}

static int read_state(void) {
    char line[1024];
    int complete = 0;
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : 0;
    memset(&now, 0, sizeof now);
    if (!file) return HALF_WRITTEN;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "end")) complete = 1;
        else if (*line) line_of_state(line);
    }
    fclose(file);
    return complete ? now.init : HALF_WRITTEN;
}

static void touched(const char *what) {
    const char *path = getenv("FAKE_NVML_TOUCHED");
    FILE *file = path ? fopen(path, "a") : 0;
    if (!file) return;
    fprintf(file, "%s\n", what);
    fclose(file);
}

/* The unit of a handle, if the library is open and the unit is still there. */
static int find(Handle handle, Unit **unit) {
    int code = read_state();
    if (!opened) return UNINITIALIZED;
    if (code) return code;
    if (!handle || !now.unit[handle->unit].exists) return INVALID;
    *unit = &now.unit[handle->unit];
    return OK;
}

static int hand_out(int index, Handle *handle) {
    if (now.unit[index].handle) return now.unit[index].handle;
    handles[index].unit = index;
    *handle = (Handle)&handles[index];
    return OK;
}

#define UNIT(handle)                     \
    Unit *unit = 0;                      \
    int code = find(handle, &unit);      \
    if (code) return code;

int nvmlInitWithFlags(unsigned flags) {
    int code = read_state();
    (void)flags;
    touched("open");
    if (!code) opened++;
    return code;
}

int nvmlShutdown(void) {
    if (!opened) return UNINITIALIZED;
    touched("close");
    opened--;
    return OK;
}

const char *nvmlErrorString(int code) { return code ? "pretended error" : "success"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = read_state();
    if (!opened) return UNINITIALIZED;
    *count = (unsigned)now.cards;
    return code;
}

/* Wakes all cards, as a real driver may. */
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle *handle) {
    int code = read_state();
    if (!opened) return UNINITIALIZED;
    if (code) return code;
    for (int card = 0; card < now.cards; card++)
        if (now.unit[card].exists) touched(now.unit[card].bus);
    if (index >= CARDS || !now.unit[index].exists) return INVALID;
    return hand_out((int)index, handle);
}

/* Real addresses of this library have a domain of eight digits, but it takes four as well. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, Handle *handle) {
    int code = read_state();
    if (!opened) return UNINITIALIZED;
    if (code) return code;
    for (int card = 0; card < now.cards; card++) {
        const char *bus = now.unit[card].bus;
        size_t extra = strlen(bus) - strlen(address);
        if (now.unit[card].exists && !strcmp(bus + (extra == 4 ? 4 : 0), address)) {
            touched(bus);
            return hand_out(card, handle);
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMigMode(Handle handle, unsigned *current, unsigned *pending) {
    UNIT(handle)
    *current = *pending = (unsigned)unit->mig;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned *count) {
    UNIT(handle)
    *count = PARTS;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned number, Handle *part) {
    UNIT(handle)
    int index = number < PARTS ? unit_of(handle->unit, (int)number) : -1;
    if (index < 0 || !now.unit[index].exists) return NOT_FOUND;
    return hand_out(index, part);
}

static int say(Handle handle, char *buffer, unsigned size, size_t offset) {
    UNIT(handle)
    if (unit->info) return unit->info;
    snprintf(buffer, size, "%s", (char *)unit + offset);
    return OK;
}

int nvmlDeviceGetName(Handle handle, char *buffer, unsigned size) {
    return say(handle, buffer, size, offsetof(Unit, name));
}

int nvmlDeviceGetUUID(Handle handle, char *buffer, unsigned size) {
    return say(handle, buffer, size, offsetof(Unit, uuid));
}

typedef struct {
    char short_bus[16];
    unsigned domain, bus, device, device_id, subsystem;
    char bus_id[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(Handle handle, Pci *pci) {
    UNIT(handle)
    if (unit->info) return unit->info;
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", unit->bus);
    return OK;
}

/* The ledger. */

static struct { double at; int slot, pid; u64 bytes; } line[LINES];
static int lines;

static double moment(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void note(FILE *file, int slot, int pid, u64 bytes) {
    if (lines == LINES) abort();
    line[lines].at = moment();
    line[lines].slot = slot;
    line[lines].pid = pid;
    line[lines].bytes = bytes;
    fprintf(file, "%.6f %d %d %llu\n", line[lines].at, slot, pid, bytes);
    fflush(file);
    lines++;
}

/* What a process held at a time. */
static u64 held(int slot, int pid, double at) {
    for (int i = lines - 1; i >= 0; i--)
        if (line[i].slot == slot && line[i].pid == pid && line[i].at <= at) return line[i].bytes;
    return 0;
}

/* Whether this line is the first that names its process on the card. */
static int is_first(int index) {
    for (int i = 0; i < index; i++)
        if (line[i].slot == line[index].slot && line[i].pid == line[index].pid) return 0;
    return 1;
}

static u64 used(int slot, int besides, double at) {
    u64 sum = 0;
    for (int i = 0; i < lines; i++)
        if (line[i].slot == slot && line[i].pid >= 0 && line[i].pid != besides && is_first(i))
            sum += held(slot, line[i].pid, at);
    return sum;
}

/* Opened, locked and read; the dead have given back what they held. */
static FILE *ledger(void) {
    const char *path = getenv("FAKE_NVML_LEDGER");
    FILE *file = path ? fopen(path, "a+") : 0;
    if (!file) return 0;
    flock(fileno(file), LOCK_EX);
    rewind(file);
    for (lines = 0; lines < LINES; lines++)
        if (fscanf(file, "%lf %d %d %llu", &line[lines].at, &line[lines].slot, &line[lines].pid,
                   &line[lines].bytes) != 4) break;
    fseek(file, 0, SEEK_END);
    for (int i = 0, known = lines; i < known; i++)
        if (line[i].pid > 0 && is_first(i) && held(line[i].slot, line[i].pid, moment()) && kill(line[i].pid, 0))
            note(file, line[i].slot, line[i].pid, 0);
    return file;
}

/* For workers: this process holds so many bytes from now on, or is killed for wanting them. */
void fake_take(int slot, int pid, u64 bytes) {
    FILE *file = ledger();
    if (!file || read_state() || slot >= CARDS) abort();
    int is_too_much = used(slot, pid, moment()) + bytes > now.unit[slot].total;
    note(file, slot, is_too_much ? -pid : pid, bytes);
    fclose(file);
    if (is_too_much) kill(pid, SIGKILL);
}

static u64 free_bytes(int index, const Unit *unit) {
    FILE *file = ledger();
    if (file) {
        u64 taken = used(index, -1, moment() - unit->lagms / 1e3);
        fclose(file);
        return unit->total > taken ? unit->total - taken : 0;
    }
    int call = calls[index]++;
    past[index][call % PAST] = unit->free;
    return past[index][(call > unit->lag ? call - unit->lag : 0) % PAST];
}

typedef struct { u64 total, free, used; } Memory;

int nvmlDeviceGetMemoryInfo(Handle handle, Memory *memory) {
    UNIT(handle)
    if (unit->mem) return unit->mem;
    memory->total = unit->total;
    memory->free = free_bytes(handle->unit, unit);
    memory->used = memory->total - memory->free;
    return OK;
}

static int processes(Handle handle, unsigned *count, Process *out, int graphics) {
    UNIT(handle)
    unsigned room = *count, found = 0;
    if (unit->procs) return unit->procs;
    FILE *file = ledger();
    if (file) {
        double at = moment() - (unit->lagms + unit->pidlagms) / 1e3;
        int slot = handle->unit;
        for (int i = 0; i < lines && unit->pidlagms >= 0 && !graphics; i++) {
            if (line[i].slot != slot || line[i].pid <= 0 || !is_first(i) || !held(slot, line[i].pid, at)) continue;
            Process process = {(unsigned)line[i].pid, held(slot, line[i].pid, at), ~0U, ~0U};
            if (out && found < room) out[found] = process;
            found++;
        }
        fclose(file);
    }
    for (int i = 0; i < now.uses; i++) {
        if (now.use[i].unit != handle->unit || now.use[i].graphics != graphics) continue;
        if (out && found < room) out[found] = now.use[i].process;
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned *count, Process *out) {
    return processes(handle, count, out, 0);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(Handle handle, unsigned *count, Process *out) {
    return processes(handle, count, out, 1);
}

#ifndef OLD_DRIVER

typedef struct { unsigned version; u64 total, reserved, free, used; } NewMemory;

int nvmlDeviceGetMemoryInfo_v2(Handle handle, NewMemory *memory) {
    UNIT(handle)
    if (unit->mem2) return unit->mem2;
    if (memory->version != (sizeof(NewMemory) | 2U << 24)) return MISMATCH;
    memory->total = unit->total;
    memory->free = free_bytes(handle->unit, unit);
    memory->reserved = (memory->total - memory->free) / 8;
    memory->used = memory->total - memory->free - memory->reserved;
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned *count, Process *out) {
    return processes(handle, count, out, 0);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned *count, Process *out) {
    return processes(handle, count, out, 1);
}

#endif
