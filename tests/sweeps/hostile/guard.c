/* Memory for torch's tensors that ends at a page without access, for `make sweep-hostile` (LD_PRELOAD).

   torch takes a tensor's memory from posix_memalign(64). While `guard_fill` is not 0 such a block is laid out as

       | its size, in a page of its own | no access | the block, up to the end of its last page | no access |

   and is full of `guard_fill`. A block that is freed is never given out again and can no longer be touched. The
   few bytes behind a block whose size is no multiple of 64 are compared when it is freed: abort() if written. */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern void __libc_free(void *);
extern void *__libc_memalign(size_t, size_t);

enum { PAGE = 4096, ALIGNED = 64 };

struct block {
  size_t bytes, pages;
  unsigned char fill;
};

static const size_t SPACE = (size_t)1 << 40;
static const size_t BLOCK_MAX = (size_t)128 << 20;
static char *space;
static size_t taken;

unsigned char guard_fill = 0;

/* Begin: returns whether there is address space. */
int guard_start(void) {
  char *found = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return 0;
  space = found;
  return 1;
}

static int guarded(const void *memory) {
  return space && (const char *)memory >= space && (const char *)memory < space + SPACE;
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  if (!space || !guard_fill || alignment != ALIGNED) {
    *memory = __libc_memalign(alignment, bytes);
    return *memory || !bytes ? 0 : ENOMEM;
  }
  const size_t rounded = (bytes + ALIGNED - 1) / ALIGNED * ALIGNED + (bytes ? 0 : ALIGNED);
  const size_t pages = (rounded + PAGE - 1) / PAGE;
  if (bytes > BLOCK_MAX) return ENOMEM;
  const size_t at = __atomic_fetch_add(&taken, (pages + 3) * PAGE, __ATOMIC_RELAXED);
  if (at + (pages + 3) * PAGE > SPACE) return ENOMEM;
  struct block *header = (struct block *)(space + at);
  char *data = space + at + 2 * PAGE;
  if (mprotect(header, PAGE, PROT_READ | PROT_WRITE) || mprotect(data, pages * PAGE, PROT_READ | PROT_WRITE))
    return ENOMEM;
  *header = (struct block){bytes, pages, guard_fill};
  memset(data, guard_fill, pages * PAGE);
  *memory = data + pages * PAGE - rounded;
  return 0;
}

void free(void *memory) {
  if (!guarded(memory)) {
    __libc_free(memory);
    return;
  }
  char *data = space + ((char *)memory - space) / PAGE * PAGE;
  const struct block *header = (struct block *)(data - 2 * PAGE);
  const struct block found = *header; /* faults if it was freed before */
  for (const char *byte = (char *)memory + found.bytes; byte < data + found.pages * PAGE; ++byte)
    if ((unsigned char)*byte != found.fill) abort();
  for (const char *byte = data; byte < (char *)memory; ++byte)
    if ((unsigned char)*byte != found.fill) abort();
  mmap(data - 2 * PAGE, (found.pages + 2) * PAGE, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
