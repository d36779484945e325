/* alloc_shim.c - test only: preloaded into the actors, counts the heap calls that the program's own
 * code makes.
 *
 * A call counts when its return address lies in the executable itself, so what libzmq or libevent
 * do on their own account stays out.  The count lies in a shared file DIR/PID, where DIR is the
 * value of ALLOC_SHIM_DIR, so that the test reads it while the actor runs.  The last callers are
 * kept beside it, as offsets into the executable (for addr2line). */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CALLER_COUNT = 60 };

typedef struct {
    _Atomic uint64_t count;
    _Atomic uint64_t callers[CALLER_COUNT]; /* newest at count % CALLER_COUNT */
} page_t;

static page_t fallback;
static page_t *page = &fallback;
static uintptr_t text_begin, text_end, base;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t align, size_t size);

static int
find_program(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    (void)context;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type == PT_LOAD && (segment->p_flags & PF_X) != 0) {
            base = info->dlpi_addr;
            text_begin = info->dlpi_addr + segment->p_vaddr;
            text_end = text_begin + segment->p_memsz;
        }
    }
    return 1; /* the program itself comes first */
}

__attribute__((constructor)) static void
start(void)
{
    dl_iterate_phdr(find_program, NULL);
    const char *directory = getenv("ALLOC_SHIM_DIR");
    if (directory == NULL) {
        return;
    }
    char path[256];
    snprintf(path, sizeof path, "%s/%ld", directory, (long)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *page) != 0) {
        return;
    }
    void *memory = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED) {
        page = memory;
    }
}

static void
count(const void *caller)
{
    uintptr_t address = (uintptr_t)caller;
    if (address >= text_begin && address < text_end) {
        uint64_t at = atomic_fetch_add(&page->count, 1);
        atomic_store(&page->callers[at % CALLER_COUNT], address - base);
    }
}

void *
malloc(size_t size)
{
    count(__builtin_return_address(0));
    return __libc_malloc(size);
}

void *
calloc(size_t number, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_calloc(number, size);
}

void *
realloc(void *old, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_realloc(old, size);
}

void *
aligned_alloc(size_t align, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_memalign(align, size);
}

int
posix_memalign(void **out, size_t align, size_t size)
{
    count(__builtin_return_address(0));
    *out = __libc_memalign(align, size);
    return *out == NULL ? 12 : 0;
}
