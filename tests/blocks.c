/* Counts the large aligned blocks of memory that a process holds, and knows those of its peak.
 *
 * Those are tensors: torch and oneDNN ask for aligned memory, and Python itself does not.
 * Built as a shared object and named in LD_PRELOAD by tests/blocks.py. BLOCKS_LEAST is the size in
 * bytes from which a block is large. Where a callback is set, it gives each block a number.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 1 << 16 };
struct block { void *address; size_t bytes; long number; };
static struct block held[ROOM], peak[ROOM];
static size_t count, peak_count, total, peak_total, least;
static long (*number_of)(size_t);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside;

static void *(*real_memalign)(size_t, size_t);
static int (*real_posix_memalign)(void **, size_t, size_t);
static void (*real_free)(void *);

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("BLOCKS_LEAST");
    real_memalign = dlsym(RTLD_NEXT, "memalign");
    real_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    real_free = dlsym(RTLD_NEXT, "free");
    least = text ? strtoull(text, NULL, 10) : (size_t)-1;
}

static void note(void *address, size_t bytes) {
    if (!address || !least || bytes < least || inside) return;
    inside = 1;
    long number = number_of ? number_of(bytes) : 0;
    pthread_mutex_lock(&lock);
    if (count < ROOM) {
        held[count++] = (struct block){address, bytes, number};
        total += bytes;
    }
    if (total > peak_total) {
        peak_total = total;
        peak_count = count;
        memcpy(peak, held, count * sizeof *held);
    }
    pthread_mutex_unlock(&lock);
    inside = 0;
}

static void forget(void *address) {
    if (!address || !count) return;
    pthread_mutex_lock(&lock);
    for (size_t n = 0; n < count; n++) {
        if (held[n].address != address) continue;
        total -= held[n].bytes;
        held[n] = held[--count];
        break;
    }
    pthread_mutex_unlock(&lock);
}

void *memalign(size_t alignment, size_t bytes) {
    if (!real_memalign) real_memalign = dlsym(RTLD_NEXT, "memalign");
    void *address = real_memalign(alignment, bytes);
    note(address, bytes);
    return address;
}

int posix_memalign(void **address, size_t alignment, size_t bytes) {
    if (!real_posix_memalign) real_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    int failed = real_posix_memalign(address, alignment, bytes);
    if (!failed) note(*address, bytes);
    return failed;
}

void free(void *address) {
    if (!real_free) real_free = dlsym(RTLD_NEXT, "free");
    forget(address);
    real_free(address);
}

void blocks_number_by(long (*callback)(size_t)) { number_of = callback; }
size_t blocks_at_peak(void) { return peak_count; }
size_t blocks_bytes(size_t n) { return peak[n].bytes; }
long blocks_number(size_t n) { return peak[n].number; }
