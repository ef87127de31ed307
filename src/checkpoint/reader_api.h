/* checkpoint/reader_api.h - the files of one process, whose bytes need not be trusted */
#ifndef CDP_SRC_CHECKPOINT_READER_API_H
#define CDP_SRC_CHECKPOINT_READER_API_H

#include "../base/config.h"
#include "../base/status_api.h"
#include "../base/types_api.h"
#include "../os/os_api.h"
#include "../dtensor/mesh_api.h"
#include "../dtensor/layout_api.h"

typedef struct cdp_ckpt_reader cdp_ckpt_reader;

/* A tensor or a blob in files. */
typedef struct cdp_ckpt_entry {
    const char *name; /* belongs to the reader */
    const char *file; /* name in its folder */
    cdp_dtype dtype;
    uint32_t ndim;
    uint64_t shape[CDP_TENSOR_DIMS], bytes;
    bool blob;
    /* how it was cut when it was saved, for people: placements, mesh, and shape if that was another
       one: "S0,R on 2x4", "S0 on 2 of 60". NULL: it was not cut on a mesh, or files do not say.
       Belongs to the reader */
    const char *layout;
} cdp_ckpt_entry;

/* Open `path`: what cdp_ckpt_load() says; of a folder of steps the newest complete one. Local. `os`
   (NULL: the default one) must outlive the reader. A reader belongs to one thread at a time.
   Errors: STATE (nothing there to read), IO (errno; EBADMSG: a file is not what it should be, and
   the text says why), UNSUPPORTED (a dtype that is not known here), NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_open(
    const char *path, const cdp_os *os, cdp_ckpt_reader **out);
/* NULL is allowed. A second close does nothing; getters answer as for NULL then, other calls are
   STATE. */
CDP_API void cdp_ckpt_close(cdp_ckpt_reader *reader);
/* The step; 0 where files have none. */
CDP_API uint64_t cdp_ckpt_step_of(const cdp_ckpt_reader *reader);
CDP_API uint32_t cdp_ckpt_count(const cdp_ckpt_reader *reader);
/* UINT32_MAX: there is none of that name. */
CDP_API uint32_t cdp_ckpt_find(const cdp_ckpt_reader *reader, const char *name);
/* Zeros for an index that is too large. */
CDP_API cdp_ckpt_entry cdp_ckpt_entry_at(const cdp_ckpt_reader *reader, uint32_t index);
/* Read a box (NULL: all) into `out`, row-major. The sum is not compared. Errors: INVALID, IO,
   UNSUPPORTED (a tensor that PyTorch has saved with other strides than those of its shape),
   NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_read(
    cdp_ckpt_reader *reader, uint32_t index, const cdp_box *box, void *out);
/* Read one entry and compare its sums. Errors: IO (EBADMSG: the text names the entry and its
   elements), UNSUPPORTED (files without sums), INVALID, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_verify(cdp_ckpt_reader *reader, uint32_t index);
/* The newest complete step of a folder. Errors: STATE (there is none), IO, NOMEM. */
CDP_MUST_CHECK CDP_API cdp_status cdp_ckpt_newest(
    const char *path, const cdp_os *os, uint64_t *step);

#endif /* CDP_SRC_CHECKPOINT_READER_API_H */
